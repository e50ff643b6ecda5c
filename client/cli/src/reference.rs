//! Which call is meant: its whole uid, or a beginning of it that fits one call only.

use toolcell_client::Client;
use toolcell_client::protocol::client_api::CallInfo;
use toolcell_client::protocol::id::CallUid;

use crate::error::CliError;
use crate::text::one_line;

/// Shorter beginnings are refused: uids of one minute share their first digits.
const MIN_DIGITS: usize = 6;

/// The shortest beginning that is shown: the uid's time.
const SHOWN_DIGITS: usize = 12;

/// Finds the call; asks the daemon only for a beginning.
pub async fn resolve(client: &Client, text: &str) -> Result<CallUid, CliError> {
    if let Ok(call_uid) = text.parse() {
        return Ok(call_uid);
    }
    let digits = digits(text)?;
    choose(&digits, text, &client.call_list(None, true).await?)
}

fn digits(text: &str) -> Result<String, CliError> {
    let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    if digits.len() < MIN_DIGITS || digits.len() > 32 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        let text = one_line(text);
        return Err(CliError::Usage(format!(
            "{text:?} is no call; give its uid from `toolcell ps --all`, or at least {MIN_DIGITS} digits of it"
        )));
    }
    Ok(digits)
}

fn choose(digits: &str, text: &str, calls: &[CallInfo]) -> Result<CallUid, CliError> {
    let mut fitting = calls.iter().filter(|call| simple(call.call_uid).starts_with(digits));
    match (fitting.next(), fitting.count()) {
        (Some(call), 0) => Ok(call.call_uid),
        (None, _) => Err(CliError::Reference(format!("no call begins with {text}; see `toolcell ps --all`"))),
        (Some(call), more) => Err(CliError::Reference(format!(
            "{} calls begin with {text}, {} ({}) and others; give more of it",
            more + 1,
            call.call_uid,
            one_line(&call.tool)
        ))),
    }
}

/// The beginnings of uids by which each can be told from the others.
pub fn shortened(calls: &[CallInfo]) -> Vec<String> {
    let mut sorted: Vec<String> = calls.iter().map(|call| simple(call.call_uid)).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let neighbours = sorted.windows(2).map(|pair| common(&pair[0], &pair[1])).max().unwrap_or(0);
    let length = SHOWN_DIGITS.max(neighbours + 1).min(32);
    calls.iter().map(|call| dashed(call.call_uid, length)).collect()
}

/// So many digits of a uid, with the dashes between them.
fn dashed(call_uid: CallUid, digits: usize) -> String {
    let mut left = digits;
    let more = |c: &char| {
        let take = left > 0;
        if *c != '-' {
            left = left.saturating_sub(1);
        }
        take
    };
    call_uid.to_string().chars().take_while(more).collect()
}

fn simple(call_uid: CallUid) -> String {
    call_uid.to_string().replace('-', "")
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::client_api::CallPhase;
    use toolcell_client::protocol::id::{CallId, SessionName};

    use super::*;

    fn calls(uids: &[&str]) -> Vec<CallInfo> {
        let call = |uid: &&str| CallInfo {
            call_uid: uid.parse().expect("a uid"),
            call_id: CallId::from("c"),
            session: SessionName::from("s"),
            uid: 0,
            tool: "bash".to_owned(),
            phase: CallPhase::Running,
            status: None,
            pid: None,
            age_ms: 0,
            running_ms: None,
            output_bytes: 0,
            immune: false,
        };
        uids.iter().map(call).collect()
    }

    const A: &str = "019ade3c-5f01-7aaa-8000-000000000001";
    const B: &str = "019ade3c-5f01-7aab-8000-000000000002";
    const C: &str = "019ade3d-0000-7000-8000-000000000003";

    fn find(text: &str) -> Result<CallUid, String> {
        let digits = digits(text).map_err(|error| error.to_string())?;
        choose(&digits, text, &calls(&[A, B, C])).map_err(|error| error.to_string())
    }

    #[test]
    fn a_beginning_that_fits_one_call_is_that_call() {
        for text in ["019ade3d", "019ADE3D-0000", "019ade3d0000"] {
            assert_eq!(find(text), Ok(C.parse().expect("a uid")));
        }
        assert_eq!(find("019ade3c-5f01-7aab"), Ok(B.parse().expect("a uid")));
    }

    #[test]
    fn too_little_nothing_and_too_many_are_told_apart() {
        assert!(find("019ad").expect_err("short").contains("at least 6"));
        assert!(find("xyzxyz").expect_err("no digits").contains("is no call"));
        assert!(find("ffffff").expect_err("none").contains("no call begins"));
        assert!(find("019ade3c").expect_err("two").contains("2 calls begin"));
    }

    #[test]
    fn what_is_shown_can_be_told_apart_and_typed_back() {
        let shown = shortened(&calls(&[A, B, C]));
        assert_eq!(shown, ["019ade3c-5f01-7aaa", "019ade3c-5f01-7aab", "019ade3d-0000-7000"]);
        for (shown, uid) in shown.iter().zip([A, B, C]) {
            assert_eq!(find(shown), Ok(uid.parse().expect("a uid")));
        }
        assert_eq!(shortened(&calls(&[A])), ["019ade3c-5f01"]);
    }
}
