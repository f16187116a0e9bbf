//! The certificates of one destination: whom to trust, and who we are where it asks.

use bulkhead_crds::destination::DestinationTls;
use bulkhead_process::tls::{Client, Identity};

use crate::certificates::{Folders, Wanted};

/// The folders that a client's certificates lie in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientFolders {
    authority: String,
    identity: Option<String>,
}

impl ClientFolders {
    pub(crate) fn of(tls: &DestinationTls) -> Self {
        Self::new(&tls.ca_secret, tls.certificate_secret.as_ref())
    }

    pub(crate) fn new(authority: &str, identity: Option<&String>) -> Self {
        Self { authority: authority.to_owned(), identity: identity.cloned() }
    }
}

/// What the files held when they were last read.
#[derive(PartialEq)]
pub(crate) struct Contents {
    authorities: Vec<u8>,
    identity: Option<Identity>,
}

impl Wanted for ClientFolders {
    type Contents = Contents;
    type Made = Client;

    fn read(&self, folders: &Folders) -> Result<Contents, String> {
        Ok(Contents {
            authorities: folders.file(&self.authority, "ca.crt")?,
            identity: self.identity.as_ref().map(|own| folders.identity(own)).transpose()?,
        })
    }

    fn make(&self, contents: &Contents) -> Result<Client, String> {
        Client::new(&contents.authorities, contents.identity.as_ref()).map_err(|error| {
            let own = self.identity.iter().map(|own| format!(" and {own}")).collect::<String>();
            format!("certificates of {}{own}: {error}", self.authority)
        })
    }
}
