//! CellTemplates: from a recipe and a Cell's values to the objects of its workload, or to the field that cannot be.
//! Pure; the `controller` beside it keeps revisions and status.

pub(crate) mod controller;
mod parameters;
mod substitute;
mod walls;

use std::collections::BTreeMap;

use bulkhead_crds::CellTemplateSpec;
use serde_json::{Value, json};

use crate::kinds::Kinds;

/// A field that cannot be accepted, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub(crate) struct Refusal {
    pub path: String,
    pub why: String,
}

impl Refusal {
    pub(crate) fn new(path: impl Into<String>, why: String) -> Self {
        Self { path: path.into(), why }
    }
}

/// Whether any Cell could be made from the template.
///
/// # Errors
/// The path of the first field that no Cell could be made with.
pub(crate) fn check(spec: &CellTemplateSpec, kinds: &Kinds) -> Result<(), Refusal> {
    parameters::check_declarations(&spec.parameters)?;
    // Stand-ins of the declared types are enough to find names that no Cell could give.
    let names = spec.parameters.iter().map(|parameter| (format!("values.{}", parameter.name), json!("x")));
    let names = names.chain([("cell.name".to_owned(), json!("x"))]).collect();
    for (index, object) in spec.objects.iter().enumerate() {
        let path = format!("spec.objects[{index}]");
        walls::check(object, kinds, &path)?;
        substitute::substitute(object, &names, &path)?;
    }
    check_duplicates(&spec.objects)
}

/// The objects of one cell's workload, as the template says: nothing of the operator's own is in them yet.
///
/// # Errors
/// The path of the first field of the Cell (`spec.values…`) or of the template (`spec.objects…`) that cannot be.
pub(crate) fn render(
    spec: &CellTemplateSpec,
    cell: &str,
    values: &BTreeMap<String, Value>,
    kinds: &Kinds,
) -> Result<Vec<Value>, Refusal> {
    let values = parameters::resolve(&spec.parameters, values)?;
    let mut names: substitute::Names =
        values.into_iter().map(|(name, value)| (format!("values.{name}"), value)).collect();
    names.insert("cell.name".to_owned(), json!(cell));
    let mut objects = Vec::with_capacity(spec.objects.len());
    for (index, object) in spec.objects.iter().enumerate() {
        let path = format!("spec.objects[{index}]");
        let object = substitute::substitute(object, &names, &path)?;
        // Checked after substitution, so that no value can smuggle in what a template may not say.
        walls::check(&object, kinds, &path)?;
        objects.push(object);
    }
    check_duplicates(&objects)?;
    Ok(objects)
}

fn check_duplicates(objects: &[Value]) -> Result<(), Refusal> {
    let mut seen = BTreeMap::new();
    for (index, object) in objects.iter().enumerate() {
        let identity =
            [&object["apiVersion"], &object["kind"], &object["metadata"]["name"]].map(Value::to_string);
        if let Some(first) = seen.insert(identity, index) {
            return Err(Refusal::new(
                format!("spec.objects[{index}].metadata.name"),
                format!("has the kind and name of objects[{first}]"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::template::{Parameter, ParameterType};

    use super::*;
    use crate::kinds;

    fn template(objects: Vec<Value>) -> CellTemplateSpec {
        let replicas = Parameter {
            name: "replicas".to_owned(),
            r#type: ParameterType::Integer,
            default: Some(json!(2)),
            ..Parameter::default()
        };
        CellTemplateSpec { objects, parameters: vec![replicas], ..CellTemplateSpec::default() }
    }

    fn deployment(spec: &Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "${cell.name}"}, "spec": spec})
    }

    #[test]
    fn values_keep_their_type_and_the_default_fills_in() {
        let template = template(vec![deployment(&json!({"replicas": "${values.replicas}"}))]);
        let kinds = Kinds::new(&[]);
        let objects = render(&template, "a", &BTreeMap::new(), &kinds).expect("is fine");
        assert_eq!(objects[0]["spec"]["replicas"], json!(2));
        assert_eq!(objects[0]["metadata"]["name"], json!("a"));
        assert_eq!(check(&template, &kinds), Ok(()));
    }

    #[test]
    fn two_objects_of_one_name_are_refused_also_when_values_make_them_so() {
        let kinds = Kinds::new(&[]);
        let template = template(vec![deployment(&json!({})), deployment(&json!({}))]);
        assert_eq!(
            check(&template, &kinds).map_err(|refusal| refusal.path),
            Err("spec.objects[1].metadata.name".to_owned())
        );
        assert!(render(&template, "a", &BTreeMap::new(), &kinds).is_err());
    }

    #[test]
    fn two_kinds_of_one_name_may_give_their_objects_one_name() {
        let added = kinds::resource("batch.volcano.sh", "v1alpha1", "Job", "jobs");
        let job =
            |version: &str| json!({"apiVersion": version, "kind": "Job", "metadata": {"name": "train"}});
        let template = template(vec![job("batch/v1"), job("batch.volcano.sh/v1alpha1")]);
        assert_eq!(check(&template, &Kinds::new(&[added])), Ok(()));
    }

    #[test]
    fn an_unknown_name_is_found_before_any_cell_uses_the_template() {
        let refusal = check(&template(vec![deployment(&json!({"x": "${values.nope}"}))]), &Kinds::new(&[]));
        assert_eq!(refusal.map_err(|refusal| refusal.path), Err("spec.objects[0].spec.x".to_owned()));
    }
}
