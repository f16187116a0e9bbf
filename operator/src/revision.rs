//! Revisions of CellTemplates: named by a hash of what cells are made from, as Deployments name their ReplicaSets, and
//! kept as ControllerRevisions, so that a cell not yet updated is still corrected to its own; where another version of
//! Bulkhead made it, only its walls and what is missing are, and where the Cell's values fit only the next one, its walls.
//! No I/O here.

use bulkhead_crds::{CellTemplateSpec, names};
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// On a ControllerRevision: the CellTemplate that it is of. A label's value may be too short for a template's name.
pub(crate) const ANNOTATION_TEMPLATE: &str = "bulkhead.dev/template";
/// Revisions without a cell that are kept for going back, besides the newest.
const KEPT: usize = 10;

/// The way in which this code turns a recipe into objects. Whoever changes what it makes of a Cell that did not change,
/// walls apart, raises it: then a new version of Bulkhead reaches cells one at a time, as a new template does.
pub(crate) const LAYOUT: u32 = 2;

/// All that decides what a cell's objects look like, besides the Cell itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recipe {
    pub template: CellTemplateSpec,
    pub cell_runtime_image: String,
    #[serde(default)]
    pub image_pull_policy: String,
    /// The [`LAYOUT`] of the code that made the revision; another one changes no object that runs.
    #[serde(default)]
    pub layout: u32,
}

/// A recipe under its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Revision {
    /// `TEMPLATE-HASH`, the name of the ControllerRevision.
    pub name: String,
    /// The hash alone, short enough for a label.
    pub hash: String,
    /// Grows with every new revision of one template.
    pub number: i64,
    pub recipe: Recipe,
}

impl Revision {
    pub(crate) fn new(template: &str, recipe: Recipe, number: i64) -> Self {
        let hash = hash(&recipe);
        // The longest legal name of an object is 253; the hash and its dash take 11.
        let prefix: String = template.chars().take(242).collect();
        Self { name: format!("{prefix}-{hash}"), hash, number, recipe }
    }

    /// The revision that a ControllerRevision holds; None for one that is not readable, which is then as good as gone.
    pub(crate) fn read(stored: &ControllerRevision) -> Option<Self> {
        let recipe = Recipe::deserialize(&stored.data.as_ref()?.0).ok()?;
        let name = stored.metadata.name.clone()?;
        let hash = stored.metadata.labels.as_ref()?.get(names::LABEL_REVISION)?.clone();
        Some(Self { name, hash, number: stored.revision, recipe })
    }

    /// The ControllerRevision as it is created.
    pub(crate) fn write(&self, template: &str, namespace: &str) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": {names::LABEL_MANAGED_BY: names::MANAGER, names::LABEL_REVISION: self.hash},
                "annotations": {ANNOTATION_TEMPLATE: template},
            },
            "revision": self.number,
            "data": self.recipe,
        })
    }
}

/// The template that a ControllerRevision is of.
pub(crate) fn template_of(stored: &ControllerRevision) -> Option<&str> {
    stored.metadata.annotations.as_ref()?.get(ANNOTATION_TEMPLATE).map(String::as_str)
}

/// The template in the name of a revision.
pub(crate) fn template_in(name: &str) -> Option<&str> {
    name.rsplit_once('-').map(|(template, _)| template)
}

/// Ten characters that can be read aloud and never spell a word, as in names of ReplicaSets.
fn hash(recipe: &Recipe) -> String {
    const ALPHABET: &[u8; 32] = b"bcdfghjklmnpqrstvwxz2456789bcdfg";
    let text = serde_json::to_value(recipe).unwrap_or_default().to_string();
    Sha256::digest(text).iter().take(10).map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

/// Which of a template's revisions may be removed: not the newest few, and none that a cell still has or goes to.
pub(crate) fn superfluous<'a>(revisions: &'a [Revision], in_use: &[&str]) -> Vec<&'a Revision> {
    let mut idle: Vec<_> =
        revisions.iter().filter(|revision| !in_use.contains(&revision.name.as_str())).collect();
    idle.sort_by_key(|revision| std::cmp::Reverse(revision.number));
    idle.split_off(KEPT.min(idle.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(image: &str) -> Recipe {
        Recipe { cell_runtime_image: image.to_owned(), ..Recipe::default() }
    }

    #[test]
    fn the_name_changes_with_the_recipe_and_with_nothing_else() {
        let first = Revision::new("payments", recipe("a"), 1);
        assert_eq!(first.name, Revision::new("payments", recipe("a"), 7).name);
        let pulled = Recipe { image_pull_policy: "Always".to_owned(), ..recipe("a") };
        let laid_out = Recipe { layout: LAYOUT, ..recipe("a") };
        for other in [recipe("b"), pulled, laid_out] {
            assert_ne!(first.name, Revision::new("payments", other, 1).name);
        }
        assert_eq!(first.name, format!("payments-{}", first.hash));
        assert_eq!(template_in(&first.name), Some("payments"));
        assert!(Revision::new(&"x".repeat(253), recipe("a"), 1).name.len() <= 253);
    }

    #[test]
    fn what_was_stored_reads_back() {
        let revision = Revision::new("payments", recipe("a"), 3);
        let stored: ControllerRevision =
            serde_json::from_value(revision.write("payments", "bulkhead-system")).expect("is one");
        assert_eq!(Revision::read(&stored), Some(revision));
        assert_eq!(template_of(&stored), Some("payments"));
    }

    #[test]
    fn the_oldest_idle_revisions_go_and_those_in_use_stay() {
        let revisions: Vec<_> =
            (0..14).map(|number| Revision::new("t", recipe(&number.to_string()), number)).collect();
        let in_use = [revisions[0].name.as_str(), revisions[13].name.as_str()];
        let gone: Vec<_> = superfluous(&revisions, &in_use).iter().map(|revision| revision.number).collect();
        assert_eq!(gone, [2, 1]);
    }
}
