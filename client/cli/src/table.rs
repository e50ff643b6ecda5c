//! Tables that fit a terminal: as wide as their contents, the last column takes what is left. What must be read
//! whole and does not fit there stands on lines of its own below its row.

use crate::text::{cut, one_line, wrap};

/// Width without a terminal that says another.
pub const DEFAULT_WIDTH: usize = 80;

/// The narrowest that the last column becomes.
const LAST_MINIMUM: usize = 10;

/// How far lines below a row are indented, and how many there are at most.
const INDENT: usize = 4;
const LINES_BELOW: usize = 3;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// How a cell is shown where colours are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Went well.
    Good,
    /// Went wrong.
    Bad,
    /// Neither.
    Odd,
}

impl Tone {
    /// The text in this tone.
    #[must_use]
    pub fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Odd => "33",
            Self::Plain => return text.to_owned(),
        };
        if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[derive(Debug)]
struct Cell {
    text: String,
    tone: Tone,
}

#[derive(Debug)]
struct Row {
    cells: Vec<Cell>,
    /// What does not fit the last column goes below instead of being cut.
    overflows: bool,
}

/// Rows under headings.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align, usize)>,
    rows: Vec<Row>,
}

impl Table {
    /// Headings, alignments, and the most characters that a column takes.
    #[must_use]
    pub fn new(columns: &[(&'static str, Align, usize)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of foreign text; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        self.add(cells, false);
    }

    /// The same; a last cell that is too wide stands below, indented, in a few lines.
    pub fn overflowing_row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        self.add(cells, true);
    }

    fn add(&mut self, cells: impl IntoIterator<Item = (String, Tone)>, overflows: bool) {
        let cells = cells.into_iter().map(|(text, tone)| Cell { text: one_line(&text), tone }).collect();
        self.rows.push(Row { cells, overflows });
    }

    /// The table in so many characters a line, if it can be done.
    #[must_use]
    pub fn render(&self, width: usize, colour: bool) -> String {
        let Some(last_column) = self.columns.len().checked_sub(1) else { return String::new() };
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(at, (heading, _, most))| {
                let cells = self
                    .rows
                    .iter()
                    .filter_map(|row| row.cells.get(at))
                    .map(|cell| cell.text.chars().count());
                cells.chain([heading.len()]).max().unwrap_or(0).min((*most).max(heading.len()))
            })
            .collect();
        let before: usize = widths[..last_column].iter().map(|width| width + 2).sum();
        widths[last_column] = widths[last_column].min(width.saturating_sub(before).max(LAST_MINIMUM));
        let mut text = String::new();
        let headings = self.columns.iter().map(|(heading, ..)| (*heading, Tone::Plain)).collect::<Vec<_>>();
        self.line(&mut text, &widths, &headings, false);
        for row in &self.rows {
            let mut cells = row.cells.iter().map(|cell| (cell.text.as_str(), cell.tone)).collect::<Vec<_>>();
            let below = cells.pop_if(|(last, _)| {
                row.overflows && row.cells.len() > last_column && last.chars().count() > widths[last_column]
            });
            self.line(&mut text, &widths, &cells, colour);
            if let Some((long, tone)) = below {
                lines_below(&mut text, long, width, |line| tone.paint(line, colour));
            }
        }
        text
    }

    fn line(&self, text: &mut String, widths: &[usize], cells: &[(&str, Tone)], colour: bool) {
        let mut line = String::new();
        let mut blanks = 0;
        for (at, (_, align, _)) in self.columns.iter().enumerate() {
            let (cell, tone) = cells.get(at).copied().unwrap_or(("", Tone::Plain));
            let cell = cut(cell, widths[at]);
            let missing = widths[at] - cell.chars().count();
            let (left, right) = match align {
                Align::Left => (0, missing),
                Align::Right => (missing, 0),
            };
            // Blanks are written only before something, so that no line ends with them.
            blanks += left;
            if !cell.is_empty() {
                line.push_str(&" ".repeat(blanks));
                line.push_str(&tone.paint(&cell, colour));
                blanks = 0;
            }
            blanks += right + 2;
        }
        text.push_str(&line);
        text.push('\n');
    }
}

/// Writes text that is too wide for its column in indented lines; what is more than a few of them is cut.
fn lines_below(text: &mut String, long: &str, width: usize, paint: impl Fn(&str) -> String) {
    let room = width.saturating_sub(INDENT).max(LAST_MINIMUM);
    let mut lines = wrap(long, room);
    if lines.len() > LINES_BELOW {
        let rest = lines.split_off(LINES_BELOW - 1).join(" ");
        lines.push(rest);
    }
    for line in lines {
        text.push_str(&" ".repeat(INDENT));
        text.push_str(&paint(&cut(&line, room)));
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[
            ("CALL", Align::Left, 8),
            ("TIME", Align::Right, 6),
            ("OUTPUT", Align::Left, usize::MAX),
        ]);
        let plain = |text: &str| (text.to_owned(), Tone::Plain);
        table.row([plain("a"), plain("12ms"), ("fine".to_owned(), Tone::Good)]);
        table.row([plain("a-very-long-id"), plain(""), plain(&"x".repeat(200))]);
        table.row([plain("c")]);
        table
    }

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let expected = "\
CALL      TIME  OUTPUT
a         12ms  fine
a-very-…        xxxxxxxxxxxxxxxxxxxxxxx…
c
";
        assert_eq!(sample().render(40, false), expected);
    }

    #[test]
    fn what_must_be_read_stands_below_where_it_does_not_fit() {
        let plain = |text: &str| (text.to_owned(), Tone::Plain);
        let mut table = sample();
        table.overflowing_row([plain("d"), plain(""), plain("short")]);
        table.overflowing_row([
            plain("e"),
            plain("1s"),
            plain("a sentence that says\nwhat is to be done now"),
        ]);
        table.overflowing_row([plain("f"), plain(""), plain(&"many words ".repeat(30))]);
        let text = table.render(40, false);
        let (_, below) = text.split_once("c\n").expect("the row before");
        let expected = "\
d               short
e           1s
    a sentence that says what is to be
    done now
f
    many words many words many words
    many words many words many words
    many words many words many words ma…
";
        assert_eq!(below, expected);
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        for width in [30, 80, 200] {
            let mut table = sample();
            let long = format!("{} {}", "word ".repeat(80), "y".repeat(300));
            table.overflowing_row(["a", "1s", &long].map(|text| (text.to_owned(), Tone::Plain)));
            let text = table.render(width, false);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
    }

    #[test]
    fn colours_come_only_where_they_are_wanted() {
        assert!(sample().render(80, true).contains("\u{1b}[32mfine\u{1b}[0m"));
        assert!(!sample().render(80, false).contains('\u{1b}'));
    }
}
