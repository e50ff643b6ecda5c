//! What happens to files: edits put back and forth, files written anew again and again, many edits of one file.

use serde::{Deserialize, Serialize};

use super::super::bounded::Recent;
use super::super::digest::Fingerprint;
use super::super::edits::{Edit, EditBody};
use super::series::Calls;

const MAX_FILES: usize = 56;
const MAX_STEPS: usize = 16;

/// One file and the newest steps from one content to another.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct File {
    content: Option<Fingerprint>,
    steps: [Fingerprint; MAX_STEPS],
    next: u8,
    /// Edits that were put in again after they were taken out.
    pub(crate) flips: u32,
    pub(crate) edits: u32,
    pub(crate) calls: Calls,
}

impl File {
    /// The step that an edit makes, and its undoing. None if it cannot be seen.
    fn step(&self, body: EditBody, seen: Option<Fingerprint>) -> Option<(Fingerprint, Fingerprint)> {
        let (from, to) = match (seen, body) {
            (Some(content), _) | (None, EditBody::Whole(content)) => (self.content?, content),
            (None, EditBody::Replace(old, new)) => (old, new),
            (None, EditBody::Unknown) => return None,
        };
        (from != to).then(|| (from.with(to), to.with(from)))
    }

    fn is_flip(&self, step: (Fingerprint, Fingerprint)) -> bool {
        self.steps.contains(&step.0) && self.steps.contains(&step.1)
    }
}

/// The files of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Files {
    files: Recent<File>,
}

impl Default for Files {
    fn default() -> Self {
        Self { files: Recent::new(MAX_FILES) }
    }
}

impl Files {
    /// A successful edit. `seen` is the content after it, if somebody looked. Says whether it was a flip.
    pub(crate) fn edited(&mut self, edit: &Edit, seen: Option<Fingerprint>, ordinal: u32) -> (&File, bool) {
        let file = self.files.entry(edit.path, File::default);
        file.edits = file.edits.saturating_add(1);
        let step = file.step(edit.body, seen);
        let flip = step.is_some_and(|step| file.is_flip(step));
        if flip {
            file.flips = file.flips.saturating_add(1);
            file.calls.push(ordinal);
        }
        if let Some((step, _)) = step
            && !file.steps.contains(&step)
        {
            file.steps[usize::from(file.next) % MAX_STEPS] = step;
            file.next = file.next.wrapping_add(1);
        }
        match (seen, edit.body) {
            (Some(content), _) | (None, EditBody::Whole(content)) => file.content = Some(content),
            _ => {}
        }
        (file, flip)
    }

    /// Files were put back to a stored state.
    pub(crate) fn restored(&mut self) {
        for file in self.files.values_mut() {
            file.steps = [Fingerprint::default(); MAX_STEPS];
            file.content = None;
        }
    }

    /// Whether this edit would flip the file once more; the file's counters.
    pub(crate) fn would_flip(&self, edit: &Edit) -> Option<&File> {
        let file = self.files.peek(edit.path)?;
        let step = file.step(edit.body, None)?;
        file.is_flip(step).then_some(file)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.files.bytes()
    }
}
