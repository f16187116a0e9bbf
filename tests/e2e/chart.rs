//! What the chart makes of its values, without installing it.

use anyhow::Result;
use bulkhead_tests::World;
use bulkhead_tests::world::SYSTEM;
use serde_json::Value;

/// The objects of the chart under these values.
fn render(world: &World, values: &[&str]) -> Result<Vec<Value>> {
    let mut args = vec!["template", "bulkhead", "charts/bulkhead", "-n", SYSTEM, "--kube-version", "1.34.0"];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    let text = world.helm(&args)?;
    text.split("\n---\n").map(|document| Ok(serde_yaml::from_str(document)?)).collect()
}

/// What an upgrade to these values would make and say, beside what is installed. Nothing is changed.
fn upgrade(world: &World, values: &[&str]) -> Result<String> {
    let mut args = vec!["upgrade", "bulkhead", "charts/bulkhead", "-n", SYSTEM, "--dry-run=server"];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    world.helm(&args)
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).expect("the chart makes it")
}

#[test]
fn routers_get_the_time_that_their_drain_takes() {
    let (world, _turn) = World::enter();
    let check = |values: &[&str], expected: u64| {
        let objects = render(world, values).expect("renders");
        let routers = find(&objects, "StatefulSet", "bulkhead-router");
        assert_eq!(
            routers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], expected,
            "{values:?}"
        );
    };
    // The delay, the drain, ten seconds for what does not end by itself, and five to spare.
    check(&["router.drainDelay=5s", "router.drainTimeout=30s"], 5 + 30 + 10 + 5);
    check(&["router.drainDelay=500ms", "router.drainTimeout=1h2m3s"], 1 + 3600 + 2 * 60 + 3 + 10 + 5);
    check(&["router.drainTimeout=30s", "router.terminationGracePeriodSeconds=300"], 300);

    let short = ["router.drainTimeout=2m", "router.terminationGracePeriodSeconds=45"];
    let refusal = format!("{:#}", render(world, &short).expect_err("too short"));
    assert!(refusal.contains("terminationGracePeriodSeconds is 45"), "{refusal}");
}

#[test]
fn routers_reach_cells_outside_the_cluster_only_where_values_say_so() {
    let (world, _turn) = World::enter();
    let egress = |values: &[&str]| {
        let objects = render(world, values).expect("renders");
        find(&objects, "NetworkPolicy", "bulkhead-router")["spec"]["egress"].clone()
    };
    let closed = egress(&["operator.allowEndpoints=true"]);
    assert!(!closed.to_string().contains("ipBlock"), "{closed}");
    let outside = r#"{"to":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]}"#;
    let open = egress(&["networkPolicy.routerEgress[0].ipBlock.cidr=192.0.2.0/24"]);
    assert!(open.to_string().contains(outside), "{open}");
}

#[test]
fn each_router_keeps_its_ledger_on_a_volume_that_outlives_it() {
    let (world, _turn) = World::enter();
    let routers = |values: &[&str]| {
        let objects = render(world, values).expect("renders");
        find(&objects, "StatefulSet", "bulkhead-router")["spec"].clone()
    };
    let plain = routers(&[]);
    let container = &plain["template"]["spec"]["containers"][0];
    let mount = &container["volumeMounts"][0];
    let claim = &plain["volumeClaimTemplates"][0];
    assert_eq!(mount["name"], claim["metadata"]["name"]);
    let folder = format!("--ledger-dir={}/ledger", mount["mountPath"].as_str().expect("a path"));
    assert!(container["args"].to_string().contains(&folder), "{container}");
    assert_eq!(claim["spec"]["storageClassName"], Value::Null, "the cluster's default");
    let kept = &plain["persistentVolumeClaimRetentionPolicy"];
    assert_eq!((&kept["whenDeleted"], &kept["whenScaled"]), (&"Retain".into(), &"Retain".into()));

    let class = routers(&["router.ledger.persistence.storageClassName=fast"]);
    assert_eq!(class["volumeClaimTemplates"][0]["spec"]["storageClassName"], "fast");
    let without = routers(&["router.ledger.persistence.enabled=false"]);
    assert_eq!(without["volumeClaimTemplates"], Value::Null);
    assert_eq!(without["template"]["spec"]["volumes"][0]["emptyDir"], serde_json::json!({}));
}

#[test]
fn what_kubernetes_never_changes_of_the_ledgers_volumes_is_refused_with_a_way_out() {
    let (world, _turn) = World::enter();
    upgrade(world, &["router.ledger.persistence.size=1024Mi"])
        .expect("the control: as it is, in other words");
    for (value, words) in [
        ("enabled=false", "enabled is false, but StatefulSet bulkhead-router was installed with volumes"),
        ("size=2Gi", "size is 2Gi, but StatefulSet bulkhead-router was installed with 1Gi"),
        (
            "storageClassName=fast",
            r#"storageClassName is "fast", but StatefulSet bulkhead-router was installed with """#,
        ),
    ] {
        let refusal = upgrade(world, &[&format!("router.ledger.persistence.{value}")]).expect_err(value);
        let refusal = format!("{refusal:#}");
        for words in [words, "keep the value; or run `kubectl -n bulkhead-system delete statefulset"] {
            assert!(refusal.contains(words), "{value}: {refusal}");
        }
    }
}

#[test]
fn the_notes_say_which_destinations_routers_reach() {
    let (world, _turn) = World::enter();
    let notes = |values: &[&str]| {
        let said = upgrade(world, values).expect("renders");
        said.split_once("NOTES:").expect("has notes").1.to_owned()
    };
    let closed = notes(&["apiServer.cidrs={192.0.2.1/32}"]);
    assert!(closed.contains("routers reach no Destination. Name"), "{closed}");
    let by_address = notes(&[]);
    let words = "routers reach no Destination but by address, at ports 443, 6443. Name";
    assert!(by_address.contains(words), "{by_address}");
    let open = notes(&["networkPolicy.routerEgress[0].ipBlock.cidr=192.0.2.0/24"]);
    assert!(!open.contains("no Destination"), "{open}");
}

#[test]
fn secrets_for_destinations_are_where_routers_look_and_a_missing_one_keeps_none_from_starting() {
    let (world, _turn) = World::enter();
    let values = ["router.tlsSecrets={visa-ca,visa.client}", "router.clusterNetworks={10.0.0.0/8,fd00::/8}"];
    let objects = render(world, &values).expect("renders");
    let pod = &find(&objects, "StatefulSet", "bulkhead-router")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for argument in ["--tls-dir=/etc/bulkhead/tls", "--cluster-networks=10.0.0.0/8,fd00::/8"] {
        assert!(container["args"].to_string().contains(argument), "{container}");
    }
    for (number, secret) in ["visa-ca", "visa.client"].into_iter().enumerate() {
        let (volume, mount) = (&pod["volumes"][number], &container["volumeMounts"][number + 1]);
        assert_eq!(
            (&volume["secret"]["secretName"], &volume["secret"]["optional"]),
            (&secret.into(), &true.into())
        );
        assert_eq!(mount["name"], volume["name"]);
        assert_eq!(mount["mountPath"], format!("/etc/bulkhead/tls/{secret}"));
    }
}

#[test]
fn secrets_of_listeners_are_mounted_once_without_being_named_again() {
    let (world, _turn) = World::enter();
    let values = [
        "router.tlsSecrets={visa-ca}",
        "router.cellTls.caSecret=cells",
        "router.listeners[0].name=https",
        "router.listeners[0].port=8443",
        "router.listeners[0].tls.certificates[0].secret=shop",
        "router.listeners[0].tls.clientAuthority.secret=visa-ca",
        "router.listeners[0].proxyProtocol.from={10.0.0.0/8}",
    ];
    let objects = render(world, &values).expect("renders");
    let pod = &find(&objects, "StatefulSet", "bulkhead-router")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().expect("has volumes");
    let secrets: Vec<_> =
        volumes.iter().filter_map(|volume| volume["secret"]["secretName"].as_str()).collect();
    assert_eq!(secrets, ["visa-ca", "cells", "shop"]);
    let spec = &find(&objects, "Router", "main")["spec"];
    let listener = &spec["listeners"][0];
    assert_eq!(spec["cellTls"]["caSecret"], "cells");
    assert_eq!(listener["tls"]["certificates"][0]["secret"], "shop");
    assert_eq!(listener["proxyProtocol"]["from"][0], "10.0.0.0/8");
}

#[test]
fn values_that_are_off_by_default_make_what_they_say() {
    let (world, _turn) = World::enter();
    let plain = render(world, &[]).expect("renders");
    let kinds = |objects: &[Value]| {
        objects
            .iter()
            .map(|object| object["kind"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(!kinds(&plain).contains(&"ServiceMonitor".to_owned()));
    let monitored =
        render(world, &["serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus"]);
    let monitored = monitored.expect("renders");
    let monitor = find(&monitored, "ServiceMonitor", "bulkhead");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    // It is of use only if its selector finds Services with that port.
    let selected = monitor["spec"]["selector"]["matchExpressions"][0]["values"].as_array().expect("a list");
    for component in selected {
        let of_component = |object: &&Value| {
            object["kind"] == "Service"
                && object["metadata"]["labels"]["bulkhead.dev/component"] == *component
        };
        let service = monitored.iter().find(of_component).expect("a Service of that component");
        assert_eq!(service["spec"]["ports"][0]["name"], monitor["spec"]["endpoints"][0]["port"]);
    }

    let known = ["apiServer.cidrs={192.0.2.1/32,192.0.2.2/32}"];
    let known = render(world, &known).expect("renders");
    let operator = find(&known, "Deployment", "bulkhead-operator");
    let args = operator["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--api-server-cidrs=192.0.2.1/32,192.0.2.2/32"), "{args}");
    for name in ["bulkhead-operator", "bulkhead-router"] {
        let egress = find(&known, "NetworkPolicy", name)["spec"]["egress"].to_string();
        assert!(egress.contains("192.0.2.2/32"), "{name}: {egress}");
    }
}

#[test]
fn no_container_has_a_cpu_limit_unless_values_give_it_one() {
    let (world, _turn) = World::enter();
    let limits = |values: &[&str]| {
        let objects = render(world, values).expect("renders");
        let pods = objects.iter().map(|object| &object["spec"]["template"]["spec"]["containers"]);
        let containers: Vec<_> = pods.filter_map(Value::as_array).flatten().cloned().collect();
        assert_eq!(containers.len(), 3, "operator, router and the check before an uninstall");
        containers.iter().filter(|container| !container["resources"]["limits"]["cpu"].is_null()).count()
    };
    assert_eq!(limits(&[]), 0);
    assert_eq!(limits(&["router.resources.limits.cpu=2"]), 1);
}

#[test]
fn no_listener_takes_the_admin_port_or_that_of_tunnels() {
    let (world, _turn) = World::enter();
    let listener = |port, tunnels| {
        let (port, tunnels) =
            (format!("router.listeners[0].port={port}"), format!("router.connect.enabled={tunnels}"));
        render(
            world,
            &["router.listeners[0].name=http", "router.listeners[0].protocol=HTTP", &port, &tunnels],
        )
    };
    listener(9091, true).expect("renders");
    listener(8082, false).expect("renders");
    for (port, words) in [(9090, "admin port"), (8082, "where routers take tunnels")] {
        let refusal = format!("{:#}", listener(port, true).expect_err(words));
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[test]
fn orchestrators_alone_find_and_reach_the_routers_tunnels_and_without_them_there_is_no_trace() {
    let (world, _turn) = World::enter();
    let objects = render(world, &[]).expect("renders");
    let service = find(&objects, "Service", "bulkhead-router-connect");
    assert_eq!(service["metadata"]["labels"]["bulkhead.dev/component"], "router-connect");
    let port = &service["spec"]["ports"][0];
    assert_eq!(
        (&port["name"], &port["port"]),
        (&"connect".into(), &8082.into()),
        "as the operator looks for it"
    );
    let container =
        &find(&objects, "StatefulSet", "bulkhead-router")["spec"]["template"]["spec"]["containers"][0];
    assert!(container["args"].to_string().contains("--connect-address=0.0.0.0:8082"), "{container}");
    let named = serde_json::json!({"name": port["targetPort"], "containerPort": port["port"]});
    assert!(container["ports"].as_array().expect("a list").contains(&named), "{container}");

    let rules = &find(&objects, "NetworkPolicy", "bulkhead-router")["spec"]["ingress"];
    let to_tunnels = |rule: &&Value| rule["ports"][0]["port"] == port["port"];
    let rule = rules.as_array().expect("a list").iter().find(to_tunnels).expect("a rule for tunnels");
    let only = serde_json::json!([{
        "namespaceSelector": {"matchExpressions": [{"key": "bulkhead.dev/cell", "operator": "Exists"}]},
        "podSelector": {"matchLabels": {"bulkhead.dev/component": "cell-runtime"}},
    }]);
    assert_eq!((&rule["from"], rule["ports"].as_array().map(Vec::len)), (&only, Some(1)));

    let without = render(world, &["router.connect.enabled=false"]).expect("renders");
    let text = Value::from(without).to_string();
    assert!(!text.contains("8082") && !text.contains("router-connect"), "{text}");
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    let (world, _turn) = World::enter();
    for (value, named) in [
        ("router.replicas=many", "replicas"),
        ("router.replica=3", "replica"),
        ("operator.unenforced=maybe", "unenforced"),
        ("router.drainTimeout=soon", "drainTimeout"),
        ("router.ledger.window=long", "window"),
        ("router.ledger.persistence.size=big", "size"),
        ("router.connect.enabled=maybe", "connect"),
        ("router.clusterNetworks={all}", "clusterNetworks"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("extraKinds[0].kind=DaemonSet", "extraKinds"),
    ] {
        let refusal = format!("{:#}", render(world, &[value]).expect_err(value));
        assert!(refusal.contains("schema") && refusal.contains(named), "{value}: {refusal}");
    }
}
