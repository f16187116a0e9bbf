//! Events as the API takes them.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use crate::clock;

/// The API's limit for the note of an Event, in bytes; a longer one loses the whole Event.
const MAX_NOTE: usize = 1024;

/// One Event for each thing that happened. kube's recorder would count later ones into the first and drop their words.
pub(super) fn event(
    reporter: &str,
    warning: bool,
    reason: &str,
    note: &str,
    about: &ObjectReference,
) -> Event {
    let now = clock::now();
    let name = about.name.as_deref().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            ..ObjectMeta::default()
        },
        action: Some(reason.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note[..note.floor_char_boundary(MAX_NOTE)].to_owned()),
        reason: Some(reason.to_owned()),
        regarding: Some(about.clone()),
        reporting_controller: Some("bulkhead.dev/operator".to_owned()),
        reporting_instance: Some(reporter.to_owned()),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_an_event_is_cut_at_a_character_within_the_limit_in_bytes() {
        for (note, length) in [("x".repeat(1024), 1024), ("x".repeat(1025), 1024), ("€".repeat(1000), 1023)]
        {
            let event = event("pod", false, "Test", &note, &ObjectReference::default());
            assert_eq!(event.note.map(|note| note.len()), Some(length));
        }
    }
}
