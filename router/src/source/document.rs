//! One YAML document as an object of the API, held to the same schema and rules as the API server holds it. Pure.

use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schema::Schemas;

/// An object that routers read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Object {
    Router(Box<Router>),
    Cell(Box<Cell>),
    Policy(Box<RoutingPolicy>),
    Shift(Box<TrafficShift>),
    Destination(Box<Destination>),
}

impl Object {
    /// `KIND/NAME` or `KIND/NAMESPACE/NAME`.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Router(router) => format!("Router/{}", router.name_any()),
            Self::Cell(cell) => format!("Cell/{}", cell.name_any()),
            Self::Policy(policy) => {
                format!("RoutingPolicy/{}/{}", policy.namespace().unwrap_or_default(), policy.name_any())
            }
            Self::Shift(shift) => format!("TrafficShift/{}", shift.name_any()),
            Self::Destination(destination) => format!("Destination/{}", destination.name_any()),
        }
    }
}

/// What a document turned out to be.
pub(super) enum Document {
    Object(Object),
    /// Empty, or of a kind that routers do not read.
    Ignored,
}

/// Splits a stream at its `---` lines, so that one broken document does not take the rest with it.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.starts_with("---") {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// Reads one document.
///
/// # Errors
/// What is wrong, with kind, name and field where they are known.
pub(super) fn read(text: &str, schemas: &Schemas) -> Result<Document, String> {
    let value: Value = serde_yaml::from_str(text).map_err(|error| format!("not YAML: {error}"))?;
    if value.is_null() {
        return Ok(Document::Ignored);
    }
    let (Some(api), Some(kind)) = (value["apiVersion"].as_str(), value["kind"].as_str()) else {
        return Err("apiVersion and kind are missing".to_owned());
    };
    let expected = format!("{}/{}", bulkhead_crds::names::GROUP, bulkhead_crds::names::VERSION);
    if api != expected {
        return if api.starts_with(bulkhead_crds::names::GROUP) {
            Err(format!("apiVersion is {api}, but must be {expected}"))
        } else {
            Ok(Document::Ignored)
        };
    }
    if !schemas.knows(kind) {
        return Err(format!("kind {kind} is not one of {expected}"));
    }
    let Some(name) = value["metadata"]["name"].as_str().map(str::to_owned) else {
        return Err(format!("{kind}: metadata.name is missing"));
    };
    let kind = kind.to_owned();
    object(&kind, value, schemas).map_err(|wrong| format!("{kind} {name}: {wrong}"))
}

fn object(kind: &str, value: Value, schemas: &Schemas) -> Result<Document, String> {
    schemas.check(kind, &value)?;
    let object = match kind {
        "Router" => Object::Router(Box::new(typed(kind, value, schemas)?)),
        "Cell" => Object::Cell(Box::new(typed(kind, value, schemas)?)),
        "RoutingPolicy" => {
            let mut policy: RoutingPolicy = typed(kind, value, schemas)?;
            policy.meta_mut().namespace.get_or_insert_with(|| "default".to_owned());
            Object::Policy(Box::new(policy))
        }
        "TrafficShift" => Object::Shift(Box::new(typed(kind, value, schemas)?)),
        "Destination" => Object::Destination(Box::new(typed(kind, value, schemas)?)),
        _ => return Ok(Document::Ignored),
    };
    Ok(Document::Object(object))
}

/// The object itself, its defaults in place, if it keeps the rules between its fields. Its generation is not the file's to
/// say.
fn typed<K>(kind: &str, value: Value, schemas: &Schemas) -> Result<K, String>
where
    K: Resource + DeserializeOwned + Serialize,
{
    let mut object: K = serde_json::from_value(value).map_err(|error| error.to_string())?;
    object.meta_mut().generation = None;
    let whole = serde_json::to_value(&object).map_err(|error| error.to_string())?;
    schemas.check_rules(kind, &whole)?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let schemas = Schemas::load().expect("the definitions are JSON");
        let read = match read(text, &schemas) {
            Ok(Document::Object(Object::Router(_))) => Ok("router"),
            Ok(Document::Object(Object::Cell(_))) => Ok("cell"),
            Ok(Document::Object(Object::Policy(_))) => Ok("policy"),
            Ok(Document::Object(Object::Shift(_))) => Ok("shift"),
            Ok(Document::Object(Object::Destination(_))) => Ok("destination"),
            Ok(Document::Ignored) => Ok("ignored"),
            Err(wrong) => Err(wrong),
        };
        match (&read, expected) {
            (Err(wrong), Err(part)) => assert!(wrong.contains(part), "{wrong:?} does not contain {part:?}"),
            _ => assert_eq!(read.as_deref().map_err(String::as_str), expected),
        }
    }

    #[test]
    fn documents_are_split_so_that_each_stands_alone() {
        assert_eq!(
            split("---\na: 1\n---\n# only a comment\nb: 2\n---\n\n"),
            ["a: 1\n", "# only a comment\nb: 2\n"]
        );
    }

    #[test]
    fn objects_are_read_and_foreign_kinds_are_left_alone() {
        let cell = "apiVersion: bulkhead.dev/v1alpha1\nkind: Cell\nmetadata: {name: a}\n";
        check(&format!("{cell}spec: {{endpoints: ['127.0.0.1:1']}}"), Ok("cell"));
        let destination = "apiVersion: bulkhead.dev/v1alpha1\nkind: Destination\nmetadata: {name: a}\n";
        let spec = "spec: {http: {}, endpoints: ['127.0.0.1:1'], pointOfNoReturn: false}";
        check(&format!("{destination}{spec}"), Ok("destination"));
        check("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}", Ok("ignored"));
        check("# nothing", Ok("ignored"));
    }

    #[test]
    fn what_a_cluster_refuses_is_refused_with_the_object_and_the_field() {
        let cell = "apiVersion: bulkhead.dev/v1alpha1\nkind: Cell\nmetadata: {name: a}\n";
        check(&format!("{cell}spec: {{wieght: 1}}"), Err("Cell a: spec.wieght is not a field"));
        check(&format!("{cell}spec: {{weight: 1}}"), Err("set either template"));
        check("kind: [", Err("not YAML"));
        check(
            "apiVersion: bulkhead.dev/v2\nkind: Cell\nmetadata: {name: a}",
            Err("must be bulkhead.dev/v1alpha1"),
        );
        check("apiVersion: bulkhead.dev/v1alpha1\nkind: Sell\nmetadata: {name: a}", Err("kind Sell"));
    }
}
