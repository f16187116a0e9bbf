//! Who may do what: the roles that the chart ships for people, and those of its own parts.

use bulkhead_tests::World;
use bulkhead_tests::world::SYSTEM;

/// A user who exists by this binding alone, removed when this goes out of scope.
struct Bound<'a>(&'a World, &'static str);

impl<'a> Bound<'a> {
    fn new(world: &'a World, role: &'static str) -> Self {
        world
            .kubectl(&[
                "create",
                "clusterrolebinding",
                role,
                &format!("--clusterrole={role}"),
                &format!("--user={role}"),
            ])
            .expect("bound");
        Self(world, role)
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "clusterrolebinding", self.1]);
    }
}

/// `kubectl auth can-i`, which exits with 1 for no.
fn can(world: &World, user: &str, verb: &str, resource: &str) -> bool {
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let part = format!("--subresource={part}");
    match world.kubectl(&["auth", "can-i", verb, resource, &part, "--as", user, "-A"]) {
        Ok(said) => said.trim() == "yes",
        Err(said) => {
            assert!(format!("{said:#}").trim_end().ends_with("no"), "{said:#}");
            false
        }
    }
}

#[test]
fn people_get_no_more_than_their_role_says() {
    let (world, _turn) = World::enter();
    let roles = ["bulkhead-view", "bulkhead-drain", "bulkhead-edit"];
    let _bound = roles.map(|role| Bound::new(world, role));
    let operator = format!("system:serviceaccount:{SYSTEM}:bulkhead-operator");
    assert!(can(world, &operator, "patch", "cells.bulkhead.dev/status"), "the control");
    for (verb, resource, allowed) in [
        ("list", "cells.bulkhead.dev", [true, true, true]),
        ("create", "trafficshifts.bulkhead.dev", [false, true, true]),
        ("patch", "cells.bulkhead.dev", [false, false, true]),
        ("delete", "routingpolicies.bulkhead.dev", [false, false, true]),
        ("list", "destinations.bulkhead.dev", [true, true, true]),
        ("create", "destinations.bulkhead.dev", [false, false, true]),
        ("patch", "cells.bulkhead.dev/status", [false, false, false]),
        ("get", "secrets", [false, false, false]),
    ] {
        assert_eq!(
            roles.map(|role| can(world, role, verb, resource)),
            allowed,
            "{roles:?}: {verb} {resource}"
        );
    }
}

#[test]
fn routers_only_read() {
    let (world, _turn) = World::enter();
    let router = format!("system:serviceaccount:{SYSTEM}:bulkhead-router");
    assert!(can(world, &router, "list", "cells.bulkhead.dev"), "the control");
    for verb in ["create", "update", "patch", "delete"] {
        for resource in
            ["cells.bulkhead.dev", "routingpolicies.bulkhead.dev", "trafficshifts.bulkhead.dev", "pods"]
        {
            assert!(!can(world, &router, verb, resource), "{verb} {resource}");
        }
    }
    assert!(!can(world, &router, "get", "secrets"));
}
