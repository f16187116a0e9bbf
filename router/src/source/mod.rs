//! Where objects come from: the API server's watches, or a folder of files. Each tells whole lists first; what is made
//! of them is the builder's.

mod document;
mod file;
mod folder;
mod freshness;
mod kubernetes;
mod schema;

pub(crate) use folder::watch as watch_folder;
pub(crate) use freshness::Freshness;
pub(crate) use kubernetes::watch as watch_kubernetes;
