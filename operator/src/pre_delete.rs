//! The check before an uninstallation: while Cells exist the operator must stay, because only it can drain and remove
//! them. Who runs it is the chart's affair.

use std::io::Write;

use anyhow::{Context as _, bail};
use bulkhead_crds::Cell;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::client;
use crate::writer::code;

/// A JSON Patch names an item of a list by its place only, so all finalizers go; the operator makes no other.
const REMOVE_FINALIZERS: &str = r#"[{"op":"remove","path":"/metadata/finalizers"}]"#;
/// Names that a message lists at most.
const NAMED: usize = 10;

/// # Errors
/// Cells exist and `force` is not set, or they could not be listed.
pub async fn pre_delete_check(force: bool) -> anyhow::Result<()> {
    let client = client::connect(client::PATIENCE).await?;
    let cells = match Api::<Cell>::all(client).list_metadata(&ListParams::default()).await {
        Ok(cells) => cells.items.iter().map(ResourceExt::name_any).collect(),
        // Without the definition there are no Cells.
        Err(error) if code(&error) == Some(404) => Vec::new(),
        Err(error) => return Err(error).context("Cells could not be listed"),
    };
    let Some(message) = refusal(&cells) else { return Ok(()) };
    // The log may be JSON; this line is for the person who reads the hook's output.
    writeln!(std::io::stderr(), "{message}")?;
    if force {
        tracing::warn!(message, "uninstalled all the same");
        return Ok(());
    }
    bail!(message)
}

fn refusal(cells: &[String]) -> Option<String> {
    if cells.is_empty() {
        return None;
    }
    let mut names = cells.iter().take(NAMED).cloned().collect::<Vec<_>>().join(" ");
    if cells.len() > NAMED {
        names.push_str(&format!(" and {} more", cells.len() - NAMED));
    }
    Some(format!(
        "Cells exist, and without the operator they are never drained and removed: {names}. Delete them first (kubectl \
         delete cell --all) and uninstall again. Helm holds the release for half gone now; this gives it back, with the \
         last REVISION that helm history RELEASE names: helm rollback RELEASE REVISION. To go on with Cells all the same: \
         that, then helm upgrade RELEASE CHART --reuse-values --set uninstall.force=true, then uninstall. A Cell that is \
         deleted after that stays until its finalizer is removed by hand: kubectl patch cell NAME --type=json -p \
         '{REMOVE_FINALIZERS}'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_names_ten_cells_and_counts_the_rest() {
        assert_eq!(refusal(&[]), None);
        let cells: Vec<String> = (0..12).map(|number| format!("cell{number}")).collect();
        let message = refusal(&cells).expect("refuses");
        assert!(message.contains("cell9 and 2 more") && !message.contains("cell10"), "{message}");
    }

    /// Helm forgets the values of the installation on an upgrade, the images among them.
    #[test]
    fn the_way_out_keeps_the_values_of_the_installation() {
        let message = refusal(&["a".to_owned()]).expect("refuses");
        assert!(message.contains("--reuse-values --set uninstall.force=true"), "{message}");
        assert!(message.contains(REMOVE_FINALIZERS), "{message}");
    }

    /// Until a rollback Helm knows no release that an upgrade could begin from.
    #[test]
    fn the_way_out_gives_the_release_back_before_it_upgrades_it() {
        let message = refusal(&["a".to_owned()]).expect("refuses");
        let (back, _) = message.split_once("helm upgrade RELEASE").expect("an upgrade");
        assert!(back.contains("helm rollback RELEASE REVISION"), "{message}");
    }
}
