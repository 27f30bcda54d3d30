// SPDX-License-Identifier: GPL-2.0

//! A line of a trace.

use serde::Serialize;
use serde_json::{Map, Value};

/// `     vhost-812-815     [001] .....    17.000123: vhost_net_rs_run_end: vring=1 packets=64`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    /// Name of the thread.
    task: String,
    tid: u32,
    cpu: u32,
    /// Since the boot, as it is written.
    seconds: String,
    event: String,
    fields: Map<String, Value>,
    /// What of the text is no `key=value`.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
}

impl Line {
    /// Takes a line apart; nothing if it is of another form, as the kernel's words about lost events are.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (thread, rest) = line.trim().split_once(" [")?;
        let (task, tid) = thread.trim_end().rsplit_once('-')?;
        let (cpu, rest) = rest.split_once(']')?;
        let (head, rest) = rest.split_once(": ")?;
        let (event, words) = rest.split_once(':')?;
        let mut fields = Map::new();
        let mut text = Vec::new();
        for word in words.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => {
                    let number = value.parse::<i64>().map(Value::from);
                    fields.insert(key.to_owned(), number.unwrap_or_else(|_| value.into()));
                }
                None => text.push(word),
            }
        }
        Some(Self {
            task: task.to_owned(),
            tid: tid.parse().ok()?,
            cpu: cpu.parse().ok()?,
            seconds: head.split_whitespace().last()?.to_owned(),
            event: event.to_owned(),
            fields,
            text: text.join(" "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_taken_apart() {
        let text = "       vhost-812-815     [001] d..1.    17.000123: vhost_run_end: vring=1 packets=64 reason=empty";
        let line = Line::parse(text).unwrap();
        let json = serde_json::to_string(&line).unwrap();
        assert_eq!(
            json,
            r#"{"task":"vhost-812","tid":815,"cpu":1,"seconds":"17.000123","event":"vhost_run_end","fields":{"vring":1,"packets":64,"reason":"empty"}}"#
        );
    }

    #[test]
    fn words_of_the_kernel_are_no_line() {
        assert_eq!(Line::parse("CPU:1 [LOST 17 EVENTS]"), None);
        assert_eq!(Line::parse(""), None);
    }
}
