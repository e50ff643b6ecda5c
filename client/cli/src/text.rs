//! Numbers and foreign text for people.

/// A duration in microseconds, three digits at most.
#[must_use]
pub fn duration_us(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..10_000 => format!("{:.1}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{}ms", us / 1_000),
        1_000_000..60_000_000 => format!("{:.1}s", us as f64 / 1e6),
        _ => {
            let seconds = us / 1_000_000;
            match seconds {
                0..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
                3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
                _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
            }
        }
    }
}

/// A duration in milliseconds, three digits at most.
#[must_use]
pub fn duration_ms(ms: u64) -> String {
    if ms == 0 { "0ms".to_owned() } else { duration_us(ms.saturating_mul(1_000)) }
}

/// A number of bytes, in the units of `ls -h`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["K", "M", "G", "T"];
    if count < 1024 {
        return format!("{count}B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1}{}", UNITS[unit]) } else { format!("{value:.0}{}", UNITS[unit]) }
}

/// Foreign text as one harmless line: what could steer a terminal is shown as `·`, blanks are single.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(1024));
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().map(|c| if is_harmless(c) { c } else { '·' }));
    }
    line
}

/// Foreign text with its lines, harmless to a terminal.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) || matches!(c, '\n' | '\t') { c } else { '·' }).collect()
}

/// Bidirectional controls can make a line read as something else.
fn is_harmless(c: char) -> bool {
    !(c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

/// Cuts to so many characters, with an ellipsis.
#[must_use]
pub fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(characters.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// Breaks at blanks into lines of at most so many characters, where words allow it; at least one line.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines
            .last_mut()
            .filter(|line| line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width);
        match line {
            Some(line) => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_short() {
        let times = [0, 999, 1_500, 12_345, 999_999, 1_000_000, 61_000_000, 3_700_000_000, 90_000_000_000];
        let texts: Vec<_> = times.into_iter().map(duration_us).collect();
        assert_eq!(texts, ["0us", "999us", "1.5ms", "12ms", "999ms", "1.0s", "1m01s", "1h01m", "1d01h"]);
        let sizes: Vec<_> = [0, 1023, 1024, 10_240, 1_048_575, 1 << 30].into_iter().map(bytes).collect();
        assert_eq!(sizes, ["0B", "1023B", "1.0K", "10K", "1.0M", "1.0G"]);
    }

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(one_line("a\u{1b}[2J  b\r\n\tc\u{202e}d"), "a·[2J b c·d");
        assert_eq!(harmless("a\n\u{7}b"), "a\n·b");
    }

    #[test]
    fn a_cut_is_seen() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abc def", 5), "abc…");
        assert_eq!(cut("äöüß", 3), "äö…");
    }

    #[test]
    fn lines_break_at_blanks() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable-word x", 5), ["unbreakable-word", "x"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
