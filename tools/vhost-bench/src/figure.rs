// SPDX-License-Identifier: GPL-2.0

//! One figure of several measurements.

use serde::Serialize;
use std::fmt;

/// Measurements below which nothing is said about how they spread.
const FEW: usize = 5;

/// A median; of measurements that are in two groups far apart, the median of each: one in between would be a value that
/// never was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Of all.
    pub median: f64,
    /// Of the lower and of the upper group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub two: Option<[f64; 2]>,
    /// The least and the greatest.
    pub range: [f64; 2],
    /// How many there are.
    pub of: usize,
}

impl Figure {
    /// Nothing of nothing.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: median(&sorted)?,
            two: groups(&sorted).and_then(|(lower, upper)| Some([median(lower)?, median(upper)?])),
            range: [*sorted.first()?, *sorted.last()?],
            of: sorted.len(),
        })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        let text = match self.two {
            None => format!("{:.digits$}", self.median),
            Some([lower, upper]) => format!("{lower:.digits$}|{upper:.digits$}"),
        };
        match f.width() {
            Some(width) => write!(f, "{text:>width$}"),
            None => f.write_str(&text),
        }
    }
}

/// One that was measured: of an even number the lower one in the middle.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Two groups of at least two, if the gap between them is wide, against each group and against the value.
#[expect(clippy::float_arithmetic, reason = "statistics")]
fn groups(sorted: &[f64]) -> Option<(&[f64], &[f64])> {
    const AGAINST_GROUP: f64 = 4.0;
    const AGAINST_VALUE: f64 = 0.005;
    if sorted.len() < FEW {
        return None;
    }
    let spread = |group: &[f64]| Some(group.last()? - group.first()?);
    let split = |at: usize| {
        let (lower, upper) = sorted.split_at(at);
        let gap = upper.first()? - lower.last()?;
        let wide = gap > AGAINST_GROUP * spread(lower)?.max(spread(upper)?)
            && gap > AGAINST_VALUE * median(sorted)?.abs();
        wide.then_some((lower, upper))
    };
    (2..sorted.len() - 1).find_map(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(values: &[f64]) -> String {
        format!("{:.0}", Figure::new(values.iter().copied()).unwrap())
    }

    #[test]
    fn median_is_one_that_was_measured() {
        assert_eq!(shown(&[3.0, 1.0, 2.0]), "2");
        assert_eq!(shown(&[1.0, 2.0, 3.0, 100.0]), "2");
        assert_eq!(shown(&[7.0]), "7");
        assert!(Figure::new([]).is_none());
    }

    #[test]
    fn two_groups_are_two_figures() {
        assert_eq!(
            shown(&[2806.0, 2861.0, 2807.0, 2862.0, 2806.0]),
            "2806|2861"
        );
        let two = Figure::new([2.0, 9.0, 2.0, 9.0, 2.0]).unwrap();
        assert_eq!((two.median, two.range, two.of), (2.0, [2.0, 9.0], 5));
    }

    #[test]
    fn what_spreads_evenly_or_has_one_outlier_is_one() {
        assert_eq!(shown(&[100.0, 101.0, 102.0, 103.0, 104.0]), "102");
        assert_eq!(shown(&[100.0, 100.0, 100.0, 100.0, 200.0]), "100");
        // A gap of 0.1 % is no difference.
        assert_eq!(shown(&[1000.0, 1000.0, 1001.0, 1001.0, 1001.0]), "1001");
        // Too few.
        assert_eq!(shown(&[1.0, 1.0, 9.0, 9.0]), "1");
    }

    #[test]
    fn figures_fill_their_column() {
        let one = Figure::new([1.25]).unwrap();
        assert_eq!(format!("{one:>8.2}"), "    1.25");
    }
}
