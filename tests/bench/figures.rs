//! Quantiles, ratios and the table.

use std::time::Duration;

/// Durations of one kind of call.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<u64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, took: Duration) {
        self.0.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The value below which this share of the samples lies, in microseconds.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

/// The rows of the result.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// A row that compares two kinds of call at one quantile: the ratio, and the time on top.
    pub fn compare(&mut self, what: &str, ours: &Samples, bare: &Samples, share: f64, target: &str) {
        let (ours, bare) = (ours.quantile_us(share), bare.quantile_us(share));
        self.rows.push([
            what.to_owned(),
            format!("{bare:.0} µs"),
            format!("{ours:.0} µs"),
            format!("{:.2}", ours / bare),
            target.to_owned(),
        ]);
    }

    /// A row of free text.
    pub fn row(&mut self, what: &str, bare: &str, ours: &str, ratio: &str, target: &str) {
        self.rows.push([what, bare, ours, ratio, target].map(str::to_owned));
    }

    /// The whole as Markdown.
    pub fn print(&self) -> String {
        let head = ["what", "bare", "toolcell", "ratio", "target"].map(str::to_owned);
        let mut text = String::new();
        for (n, row) in std::iter::once(&head).chain(&self.rows).enumerate() {
            text.push_str("| ");
            text.push_str(&row.join(" | "));
            text.push_str(" |\n");
            if n == 0 {
                text += "|---|---|---|---|---|\n";
            }
        }
        text
    }
}

/// The middle of several runs.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
