//! A certificate authority for one cluster and a certificate for each of its parts. They are made once,
//! all together, and last as long as the cluster's folder.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::layout::{Layout, Place, node_name};
use super::state::{State, write};

/// Who a certificate speaks for: its file name, common name, organisation and names as a server.
struct Subject {
    file: String,
    name: String,
    organisation: Option<&'static str>,
    server: Vec<String>,
}

/// Makes the certificates unless they are there.
///
/// # Errors
/// When they cannot be made or written.
pub fn ensure(state: &State, layout: &Layout) -> Result<()> {
    let certs = state.path("certs");
    if certs.exists() {
        return Ok(());
    }
    let partial = state.path("certs.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    make(&partial, layout).context("cannot make the cluster's certificates")?;
    // The folder appears whole, so that a crash half way never leaves certificates of two authorities.
    fs::rename(&partial, &certs)?;
    for user in clients(layout) {
        let file = if user == "admin" { "kubeconfig".to_owned() } else { format!("{user}.kubeconfig") };
        write(&state.path(file), &kubeconfig(&certs, &layout.api_url(), &layout.name.to_string(), &user)?)?;
    }
    Ok(())
}

/// The parts that call the API server.
fn clients(layout: &Layout) -> Vec<String> {
    let parts = ["admin", "controller-manager", "scheduler", "kube-proxy", "kube-router", "volumes"]
        .map(str::to_owned);
    parts.into_iter().chain(layout.node_numbers().map(node_name)).collect()
}

fn subjects(layout: &Layout) -> Vec<Subject> {
    let control_plane = layout.address(Place::ControlPlane).to_string();
    let api = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["localhost".to_owned(), "127.0.0.1".to_owned(), layout.api_service().to_string(), control_plane])
    .collect();
    let client = |file: &str, name: &str, organisation| Subject {
        file: file.to_owned(),
        name: name.to_owned(),
        organisation,
        server: Vec::new(),
    };
    let mut all = vec![
        Subject { server: api, ..client("apiserver", "kube-apiserver", None) },
        client("apiserver-kubelet", "kube-apiserver-kubelet-client", Some("system:masters")),
        client("admin", "admin", Some("system:masters")),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("kube-proxy", "system:kube-proxy", None),
        client("kube-router", "kube-router", Some("system:masters")),
        client("volumes", "volumes", Some("system:masters")),
    ];
    all.extend(layout.node_numbers().map(|number| {
        let node = node_name(number);
        let server = vec![node.clone(), layout.address(Place::Node(number)).to_string()];
        let name = format!("system:node:{node}");
        Subject { file: node, name, organisation: Some("system:nodes"), server }
    }));
    all
}

fn make(folder: &Path, layout: &Layout) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, format!("bulkhead cluster {}", layout.name));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    write(&folder.join("ca.crt"), &authority.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(authority, key);
    for subject in subjects(layout) {
        let mut params = CertificateParams::new(subject.server)?;
        params.distinguished_name.push(DnType::CommonName, subject.name);
        if let Some(organisation) = subject.organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        write(&folder.join(format!("{}.crt", subject.file)), &params.signed_by(&key, &issuer)?.pem())?;
        secret(&folder.join(format!("{}.key", subject.file)), &key.serialize_pem())?;
    }
    let accounts = KeyPair::generate()?;
    write(&folder.join("service-accounts.pub"), &accounts.public_key_pem())?;
    secret(&folder.join("service-accounts.key"), &accounts.serialize_pem())
}

fn secret(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// A kubeconfig that needs no other file, so that it can be copied.
fn kubeconfig(certs: &Path, server: &str, cluster: &str, user: &str) -> Result<String> {
    let read = |file: String| -> Result<String> { Ok(BASE64_STANDARD.encode(fs::read(certs.join(file))?)) };
    let (authority, certificate, key) =
        (read("ca.crt".to_owned())?, read(format!("{user}.crt"))?, read(format!("{user}.key"))?);
    Ok(format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster: {{server: \"{server}\", certificate-authority-data: {authority}}}
users:
- name: {user}
  user: {{client-certificate-data: {certificate}, client-key-data: {key}}}
contexts:
- name: bulkhead-{cluster}
  context: {{cluster: {cluster}, user: {user}}}
current-context: bulkhead-{cluster}
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_that_calls_the_api_server_has_a_certificate() {
        let layout = Layout { name: "a".parse().unwrap(), index: 0, nodes: 2 };
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), &layout).unwrap();
        for user in clients(&layout) {
            let text = kubeconfig(folder.path(), &layout.api_url(), "a", &user).unwrap();
            assert!(text.contains("https://10.250.0.10:6443"), "{text}");
        }
    }
}
