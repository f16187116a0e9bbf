//! How each listener with TLS takes connections: made of the certificates that are there, made anew when one changes. What
//! cannot be made leaves what was there, as far as that lets in nobody whom the listener would refuse.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_crds::router::{ClientAuthority, ListenerTls, TlsVersion};
use bulkhead_process::tls::Identity;
use bulkhead_process::tls::server::{Authorities, Certified, Clients, Oldest, Server, Tickets};
use bulkhead_routing::table::Table;

use crate::certificates::{Certificates, Folders, Wanted};

/// The Secret of a certificate that a listener shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shown(String);

impl Wanted for Shown {
    type Contents = Identity;
    type Made = Certified;

    fn read(&self, folders: &Folders) -> Result<Identity, String> {
        folders.identity(&self.0)
    }

    fn make(&self, contents: &Identity) -> Result<Certified, String> {
        Certified::new(contents).map_err(|error| format!("certificate of {}: {error}", self.0))
    }
}

/// The Secret of those that clients' certificates come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Trusted(String);

impl Wanted for Trusted {
    type Contents = Vec<u8>;
    type Made = Authorities;

    fn read(&self, folders: &Folders) -> Result<Vec<u8>, String> {
        folders.file(&self.0, "ca.crt")
    }

    fn make(&self, contents: &Vec<u8>) -> Result<Authorities, String> {
        Authorities::new(contents).map_err(|error| format!("authorities of {}: {error}", self.0))
    }
}

/// One listener's TLS.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Served {
    /// None while it cannot be made.
    pub(crate) server: Option<Server>,
    /// What is wrong with what is there now.
    pub(crate) wrong: Option<String>,
}

/// By the listener's name, those with TLS.
pub(crate) type Servers = BTreeMap<String, Served>;

/// What a server was made of, so that one that changes nothing is the same.
struct Made {
    shown: Vec<(Certified, Vec<String>)>,
    clients: Option<Clients>,
    terms: Terms,
    tickets: Tickets,
    server: Server,
}

/// Whom a listener lets in.
#[derive(Clone, PartialEq)]
struct Terms {
    authority: Option<ClientAuthority>,
    oldest: TlsVersion,
}

impl Terms {
    fn of(tls: &ListenerTls) -> Self {
        Self { authority: tls.client_authority.clone(), oldest: tls.min_version }
    }
}

/// What is remembered between tables.
#[derive(Default)]
pub(crate) struct ListenerCertificates {
    shown: Certificates<Shown>,
    trusted: Certificates<Trusted>,
    made: BTreeMap<String, Made>,
}

impl ListenerCertificates {
    pub(crate) fn new(tls_dir: Option<PathBuf>) -> Self {
        let folders = Folders::of(tls_dir);
        Self {
            shown: Certificates::new(folders.clone()),
            trusted: Certificates::new(folders),
            made: BTreeMap::new(),
        }
    }

    /// Whether certificates have changed since the last table.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        self.shown.refresh(now_ms) | self.trusted.refresh(now_ms)
    }

    /// The listeners of that table that have TLS.
    pub(crate) async fn of_table(&mut self, table: &Table) -> Arc<Servers> {
        let with_tls =
            || table.listeners().iter().filter_map(|listener| Some((&listener.name, listener.tls.as_ref()?)));
        let shown = with_tls().flat_map(|(_, tls)| &tls.certificates);
        self.shown.want(shown.map(|shown| Shown(shown.secret.clone()))).await;
        let trusted = with_tls().filter_map(|(_, tls)| tls.client_authority.as_ref());
        self.trusted.want(trusted.map(|trusted| Trusted(trusted.secret.clone()))).await;
        self.made.retain(|name, _| with_tls().any(|(other, _)| other == name));
        Arc::new(with_tls().map(|(name, tls)| (name.clone(), self.serve(name, tls))).collect())
    }

    fn serve(&mut self, name: &str, tls: &ListenerTls) -> Served {
        let mut wrong = Vec::new();
        let mut shown = Vec::new();
        for certificate in &tls.certificates {
            let (made, error) = self.shown.get(&Shown(certificate.secret.clone()));
            wrong.extend(why(made.is_some(), error, &certificate.secret));
            shown.extend(made.map(|made| (made.clone(), certificate.hosts.clone())));
        }
        let clients = tls.client_authority.as_ref().map(|authority| {
            let (made, error) = self.trusted.get(&Trusted(authority.secret.clone()));
            wrong.extend(why(made.is_some(), error, &authority.secret));
            Some(Clients { authorities: made?.clone(), optional: authority.optional })
        });
        let server = match clients {
            // Those whom it lets in are not known, and nobody else may be.
            Some(None) => None,
            clients => self.make(name, tls, shown, clients.flatten()).unwrap_or_else(|error| {
                wrong.push(error);
                None
            }),
        };
        let terms = Terms::of(tls);
        let server = server.or_else(|| {
            let before = self.made.get(name).filter(|made| made.terms == terms)?;
            Some(before.server.clone())
        });
        let wrong = (!wrong.is_empty()).then(|| format!("listener {name}: {}", wrong.join("; ")));
        Served { server, wrong }
    }

    /// None without any certificate to show.
    fn make(
        &mut self,
        name: &str,
        tls: &ListenerTls,
        shown: Vec<(Certified, Vec<String>)>,
        clients: Option<Clients>,
    ) -> Result<Option<Server>, String> {
        let terms = Terms::of(tls);
        let before = self.made.get(name);
        if shown.is_empty() {
            return Ok(None);
        }
        if let Some(same) =
            before.filter(|made| made.shown == shown && made.clients == clients && made.terms == terms)
        {
            return Ok(Some(same.server.clone()));
        }
        // Who was let in with a certificate comes back by ticket without one, so that other authorities end all tickets.
        let tickets = match before.filter(|made| made.clients == clients) {
            Some(made) => Ok(made.tickets.clone()),
            None => Tickets::new(),
        };
        let oldest = match tls.min_version {
            TlsVersion::V1_2 => Oldest::V1_2,
            TlsVersion::V1_3 => Oldest::V1_3,
        };
        let named: Vec<(Certified, &[String])> =
            shown.iter().map(|(certified, hosts)| (certified.clone(), hosts.as_slice())).collect();
        let made = tickets.and_then(|tickets| {
            let server = Server::new(&named, clients.as_ref(), oldest, &tickets)?;
            Ok((tickets, server))
        });
        let (tickets, server) = made.map_err(|error| error.to_string())?;
        self.made.insert(name.to_owned(), Made { shown, clients, terms, tickets, server: server.clone() });
        Ok(Some(server))
    }
}

/// What is wrong with one Secret.
fn why(is_there: bool, error: Option<&str>, secret: &str) -> Option<String> {
    match error {
        Some(error) => Some(error.to_owned()),
        None if is_there => None,
        None => Some(format!("Secret {secret} is not read yet")),
    }
}

#[cfg(test)]
mod tests;
