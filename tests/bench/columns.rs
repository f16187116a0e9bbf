//! Lines of cells as a table for people. What is in them is each bench's own.

/// Every column as wide as its widest cell; the first `names` of them begin at their left edge, the others are figures and
/// end at their right one.
pub(crate) fn columns<const N: usize>(lines: &[[String; N]], names: usize) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < names { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_at_the_left_and_figures_end_at_the_right() {
        let lines = [["who", "sent"], ["bulkhead", "5"], ["nginx", "4800"]];
        let lines = lines.map(|line| line.map(str::to_owned));
        assert_eq!(columns(&lines, 1), "who       sent\nbulkhead     5\nnginx     4800\n");
        assert_eq!(columns::<2>(&[], 1), "");
    }
}
