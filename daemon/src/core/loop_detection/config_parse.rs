//! Reads a block of configuration from a JSON value; both spellings of every key, camelCase and snake_case.
//!
//! Configuration files are read strictly: whatever is wrong is refused, naming the key. Recorded runs carry the block
//! that was in force elsewhere, where a bad value silently means the default; [`Reading::Lenient`] does the same.

use serde_json::{Map, Value};

use super::config::{LoopBlock, RuleBlock, Rules, Strategy};

/// What to do about a value that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Refuse the block.
    Strict,
    /// Leave the key out.
    Lenient,
}

/// Why a block was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("loop_detection: {key}: {problem}")]
pub struct LoopConfigError {
    /// The key, with dots, as it was written.
    pub key: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

/// Largest value of a threshold; more makes no sense and could not be counted.
const MAX_COUNT: u64 = 1_000_000;

impl LoopBlock {
    /// Reads one block.
    ///
    /// # Errors
    /// Strict only: an unknown key, a key written twice, a value of the wrong kind, thresholds out of order.
    pub fn parse(value: &Value, reading: Reading) -> Result<Self, LoopConfigError> {
        let mut block = Self::default();
        let mut table = Table::new("", value, reading)?;
        block.enabled = table.boolean("enabled")?;
        block.strategy = table.strategy()?;
        block.history_size = table.count("history_size")?;
        block.warning_threshold = table.count("warning_threshold")?;
        block.critical_threshold = table.count("critical_threshold")?;
        block.unknown_tool_threshold = table.count("unknown_tool_threshold")?;
        block.global_circuit_breaker_threshold = table.count("global_circuit_breaker_threshold")?;
        block.max_edits_per_file = table.count("max_edits_per_file")?;
        block.min_repeat_pattern = table.count("min_repeat_pattern")?;
        block.max_consecutive_failures = table.count("max_consecutive_failures")?;
        block.cooldown_calls = table.count("cooldown_calls")?;
        block.volatile_keys = table.names("volatile_keys")?;
        if let Some(mut detectors) = table.table("detectors")? {
            block.generic_repeat = detectors.boolean("generic_repeat")?;
            block.known_poll_no_progress = detectors.boolean("known_poll_no_progress")?;
            block.ping_pong = detectors.boolean("ping_pong")?;
            detectors.end()?;
        }
        if let Some(mut guard) = table.table("post_compaction_guard")? {
            block.window_size = guard.count("window_size")?;
            guard.end()?;
        }
        if let Some(mut budget) = table.table("budget")? {
            block.max_calls = budget.count("max_calls")?;
            block.max_time_ms = budget.number("max_time_ms", 1, u64::MAX)?;
            budget.end()?;
        }
        if let Some(rules) = table.table("rules")? {
            parse_rules(rules, &mut block)?;
        }
        table.end()?;
        if reading == Reading::Strict {
            in_order(&block)?;
        }
        Ok(block)
    }
}

fn in_order(block: &LoopBlock) -> Result<(), LoopConfigError> {
    let pairs = [
        ("critical_threshold", block.critical_threshold, "warning_threshold", block.warning_threshold),
        (
            "global_circuit_breaker_threshold",
            block.global_circuit_breaker_threshold,
            "critical_threshold",
            block.critical_threshold,
        ),
    ];
    for (upper_key, upper, lower_key, lower) in pairs {
        if let (Some(upper), Some(lower)) = (upper, lower)
            && upper <= lower
        {
            return Err(LoopConfigError {
                key: upper_key.to_owned(),
                problem: format!("{upper} must be greater than {lower_key} ({lower})"),
            });
        }
    }
    Ok(())
}

fn parse_rules(mut rules: Table<'_>, block: &mut LoopBlock) -> Result<(), LoopConfigError> {
    for name in rules.keys() {
        let snake = snake_case(&name);
        if Rules::default().named(&snake).is_none() {
            continue; // left for `end`, which names it
        }
        let key = rules.path(&name);
        let rule = match rules.take(&snake)? {
            Some(Value::Bool(false)) => RuleBlock { warn: Some(0), block: Some(0) },
            Some(Value::Bool(true)) | None => RuleBlock::default(),
            Some(value) => {
                let mut table = Table::new(&key, value, rules.reading)?;
                let rule = RuleBlock { warn: table.steps("warn")?, block: table.steps("block")? };
                table.end()?;
                rule
            }
        };
        if let (Some(warn), Some(stop)) = (rule.warn, rule.block)
            && warn > 0
            && stop > 0
            && stop <= warn
            && rules.reading == Reading::Strict
        {
            return Err(LoopConfigError {
                key: format!("{key}.block"),
                problem: format!("{stop} must be greater than warn ({warn})"),
            });
        }
        block.rules.insert(snake, rule);
    }
    rules.end()
}

/// One table of the block; remembers which keys were asked for.
struct Table<'a> {
    prefix: String,
    map: Option<&'a Map<String, Value>>,
    taken: Vec<String>,
    reading: Reading,
}

impl<'a> Table<'a> {
    fn new(prefix: &str, value: &'a Value, reading: Reading) -> Result<Self, LoopConfigError> {
        let map = match (value, reading) {
            (Value::Object(map), _) => Some(map),
            (_, Reading::Lenient) => None,
            (other, Reading::Strict) => {
                return Err(LoopConfigError {
                    key: if prefix.is_empty() { "(the block)".to_owned() } else { prefix.to_owned() },
                    problem: format!("must be a table, not {}", kind(other)),
                });
            }
        };
        Ok(Self { prefix: prefix.to_owned(), map, taken: Vec::new(), reading })
    }

    fn keys(&self) -> Vec<String> {
        self.map.map(|map| map.keys().cloned().collect()).unwrap_or_default()
    }

    fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }

    fn refuse<T>(&self, key: &str, problem: String) -> Result<Option<T>, LoopConfigError> {
        match self.reading {
            Reading::Lenient => Ok(None),
            Reading::Strict => Err(LoopConfigError { key: self.path(key), problem }),
        }
    }

    fn take(&mut self, snake: &str) -> Result<Option<&'a Value>, LoopConfigError> {
        let Some(map) = self.map else { return Ok(None) };
        let camel = camel_case(snake);
        self.taken.push(snake.to_owned());
        let as_camel = (camel != snake).then(|| map.get(&camel)).flatten();
        if as_camel.is_some() {
            if map.contains_key(snake) {
                return self.refuse(snake, format!("is written twice, as {snake} and as {camel}"));
            }
            self.taken.push(camel);
        }
        Ok(as_camel.or_else(|| map.get(snake)))
    }

    fn boolean(&mut self, key: &str) -> Result<Option<bool>, LoopConfigError> {
        match self.take(key)? {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => self.refuse(key, format!("must be true or false, not {}", kind(other))),
        }
    }

    fn number(&mut self, key: &str, least: u64, most: u64) -> Result<Option<u64>, LoopConfigError> {
        let Some(value) = self.take(key)? else { return Ok(None) };
        // 5.0 is the integer 5 where these files come from.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let number = value
            .as_u64()
            .or_else(|| value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0).map(|f| f as u64));
        match number {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => self.refuse(key, format!("must be an integer from {least} to {most}, not {value}")),
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn count(&mut self, key: &str) -> Result<Option<u32>, LoopConfigError> {
        Ok(self.number(key, 1, MAX_COUNT)?.map(|number| number as u32))
    }

    #[allow(clippy::cast_possible_truncation)]
    fn steps(&mut self, key: &str) -> Result<Option<u32>, LoopConfigError> {
        Ok(self.number(key, 0, MAX_COUNT)?.map(|number| number as u32))
    }

    fn strategy(&mut self) -> Result<Option<Strategy>, LoopConfigError> {
        match self.take("strategy")? {
            None => Ok(None),
            Some(Value::String(name)) if name == "classic" => Ok(Some(Strategy::Classic)),
            Some(Value::String(name)) if name == "progress" => Ok(Some(Strategy::Progress)),
            Some(other) => {
                self.refuse("strategy", format!("must be \"classic\" or \"progress\", not {other}"))
            }
        }
    }

    fn names(&mut self, key: &str) -> Result<Option<Vec<String>>, LoopConfigError> {
        let Some(value) = self.take(key)? else { return Ok(None) };
        let names: Option<Vec<String>> = value
            .as_array()
            .and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        match names {
            Some(names) => Ok(Some(names)),
            None => self.refuse(key, format!("must be a list of names, not {}", kind(value))),
        }
    }

    fn table(&mut self, key: &str) -> Result<Option<Self>, LoopConfigError> {
        match self.take(key)? {
            None => Ok(None),
            Some(value) => Self::new(&self.path(key), value, self.reading).map(Some),
        }
    }

    fn end(self) -> Result<(), LoopConfigError> {
        if self.reading == Reading::Lenient {
            return Ok(());
        }
        match self.keys().into_iter().find(|key| !self.taken.contains(key)) {
            None => Ok(()),
            Some(key) => {
                Err(LoopConfigError { key: self.path(&key), problem: "there is no such key".to_owned() })
            }
        }
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
        other => other.to_string(),
    }
}

fn camel_case(snake: &str) -> String {
    let mut out = String::with_capacity(snake.len());
    let mut upper = false;
    for c in snake.chars() {
        if c == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

fn snake_case(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_uppercase() {
            out.push('_');
            out.extend(c.to_lowercase());
        } else {
            out.push(c);
        }
    }
    out
}
