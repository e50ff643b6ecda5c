//! `toolcell tools`: what may be called.

use serde::Serialize;
use serde_json::value::RawValue;
use toolcell_client::protocol::client_api::ToolInfo;

use crate::args::Common;
use crate::backend::Backend;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::table::{Align, Table, Tone};
use crate::text::duration_ms;

pub async fn tools(common: &Common, console: &mut Console) -> Result<u8, CliError> {
    let backend = Backend::open(common, console).await?;
    let tools = backend.client.tools().await?;
    if common.json {
        let tools = tools.into_iter().map(ToolJson::of).collect::<Result<Vec<_>, _>>()?;
        console.json(&tools)?;
    } else {
        let text = render(&tools, console.width);
        console.out(&text)?;
        if !backend.is_own() {
            for broken in backend.client.server_status().await?.broken_manifests {
                console.note(&broken);
            }
        }
    }
    Ok(exit::OK)
}

/// A tool with its schema as JSON and not as text.
#[derive(Debug, Serialize)]
struct ToolJson {
    name: String,
    description: String,
    input_schema: Box<RawValue>,
    kind: String,
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
    immune: bool,
    exclusive: bool,
    timeout_ms: u64,
    source: String,
    command: Vec<String>,
}

impl ToolJson {
    fn of(tool: ToolInfo) -> Result<Self, CliError> {
        Ok(Self {
            name: tool.name,
            description: tool.description,
            input_schema: RawValue::from_string(tool.input_schema)?,
            kind: tool.kind,
            read_only: tool.read_only,
            destructive: tool.destructive,
            idempotent: tool.idempotent,
            open_world: tool.open_world,
            immune: tool.immune,
            exclusive: tool.exclusive,
            timeout_ms: tool.timeout_ms,
            source: tool.source,
            command: tool.command,
        })
    }
}

fn render(tools: &[ToolInfo], width: usize) -> String {
    let mut table = Table::new(&[
        ("TOOL", Align::Left, 24),
        ("KIND", Align::Left, 8),
        ("TIMEOUT", Align::Right, 7),
        ("FLAGS", Align::Left, 16),
        ("DESCRIPTION", Align::Left, usize::MAX),
    ]);
    for tool in tools {
        let flags: Vec<_> = [
            (tool.immune, "immune"),
            (tool.exclusive, "alone"),
            (tool.read_only, "ro"),
            (tool.destructive && !tool.read_only, "destr"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect();
        let cells = [
            tool.name.clone(),
            tool.kind.clone(),
            duration_ms(tool.timeout_ms),
            flags.join(","),
            tool.description.lines().next().unwrap_or_default().to_owned(),
        ];
        table.row(cells.map(|text| (text, Tone::Plain)));
    }
    table.render(width, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> ToolInfo {
        ToolInfo {
            name: "grep".to_owned(),
            description: "Searches files. \nMore.".to_owned(),
            input_schema: r#"{"type": "object"}"#.to_owned(),
            kind: "search".to_owned(),
            read_only: true,
            destructive: false,
            idempotent: true,
            open_world: false,
            immune: true,
            exclusive: false,
            timeout_ms: 120_000,
            source: "builtin".to_owned(),
            command: Vec::new(),
        }
    }

    #[test]
    fn a_tool_is_one_line() {
        let expected = "\
TOOL  KIND    TIMEOUT  FLAGS      DESCRIPTION
grep  search    2m00s  immune,ro  Searches files.
";
        assert_eq!(render(&[tool()], 80), expected);
    }

    #[test]
    fn the_schema_is_json_in_json() {
        let text = serde_json::to_string(&ToolJson::of(tool()).expect("good")).expect("JSON");
        assert!(text.contains(r#""input_schema":{"type": "object"}"#), "{text}");
    }
}
