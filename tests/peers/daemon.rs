//! A peer as a program, and connections to it through a socket in a folder of its own.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bulkhead_http1::{AnswerReader, Fields};
use bulkhead_tests::eventually::eventually;
use bytes::BytesMut;
use http::{Method, StatusCode};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;

use crate::beside::{Sight, check_seen};
use crate::forwarding::Form;
use crate::inputs::inputs;
use crate::peers::Peer;
use crate::process::Group;
use crate::reading::Message;

/// How long it may take to start, and to answer everything on one connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// It ends with the value.
pub(crate) struct Daemon {
    _group: Group,
    folder: TempDir,
}

impl Daemon {
    /// Starts it with that configuration, in which `@FOLDER@` is filled in; it listens on `front` there.
    pub(crate) fn start(peer: Peer, configuration: &str) -> Self {
        let cache = std::env::var_os("BULKHEAD_CACHE").map(PathBuf::from);
        let cache =
            cache.expect("BULKHEAD_CACHE names a folder to keep programs in; `cargo xtask test` sets it");
        let program = peer.program(&cache).expect("the program can be had");
        let folder = tempfile::tempdir().expect("a folder can be made");
        let place = [("@FOLDER@", folder.path().to_string_lossy().into_owned())];
        let launch = peer.launch(program, folder.path(), &[("configuration", configuration)], &place);
        let launch = launch.expect("the configuration can be written");
        let log = folder.path().join("log");
        let mut group = Group::start(&[launch], &log).expect("it starts");
        let listens = eventually(PATIENCE, || {
            group.lives()?;
            UnixStream::connect(folder.path().join("front")).context("it does not listen")
        });
        if let Err(error) = listens {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            unreachable!("{} does not start: {error:#}\n{said}", peer.name());
        }
        Self { _group: group, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Status and fields of all answers to these bytes, none of which has a body that is looked at. With `ends` the client says
    /// that no more will come.
    pub(crate) fn answers(&self, bytes: &[u8], ends: bool) -> Vec<(StatusCode, Fields)> {
        let told = self.exchange(bytes, ends).expect("it answers and ends the connection");
        let (mut buffer, mut reader, mut answers) =
            (BytesMut::from(&told[..]), AnswerReader::default(), Vec::new());
        // As if to HEAD: what refuses may have a body, and is the last.
        while let Ok(Some(answer)) = reader.read(&mut buffer, &Method::HEAD, 1 << 20) {
            answers.push((answer.status, answer.fields));
        }
        answers
    }

    fn exchange(&self, bytes: &[u8], ends: bool) -> anyhow::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.path("front"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Who refuses what comes first may not take what follows.
        let written = stream.write_all(bytes);
        if ends && written.is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut told = Vec::new();
        match stream.read_to_end(&mut told) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(anyhow!("no end after {PATIENCE:?} of {:?}", bytes.escape_ascii().to_string()))
            }
            // A reset is how a connection ends whose bytes were not all read.
            _ => Ok(told),
        }
    }
}

/// Asserts for any bytes that what goes on of them is seen as what was read.
pub(crate) fn check_any(refuses: impl Fn(&Message) -> bool, sight: impl Fn(&[u8]) -> Sight) {
    let forms = select(vec![Form::Whole, Form::Chunked]);
    let config = ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() };
    let checked = TestRunner::new(config).run(&(inputs(), forms), |(bytes, form)| {
        check_seen(&bytes, form, &refuses, &sight);
        Ok(())
    });
    checked.expect("all are seen");
}
