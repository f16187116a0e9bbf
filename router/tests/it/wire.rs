//! A connection's bytes, from a client's socket to a cell: the cell sees the requests that were read, and no others. What is
//! read of them is the codec's own tests to say.

use bulkhead_http1::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cases::REQUESTS;
use crate::forwarding::{Form, forward};
use crate::reading::requests;
use crate::world::{PATIENCE, Setup, World, policy};

const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n";

/// Targets and bodies.
type Seen = Vec<(String, Vec<u8>)>;

async fn seen(world: &World, bytes: &[u8]) -> Seen {
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(bytes).await.expect("writes");
    let mut answers = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answers)).await;
    read.expect("the connection ends").expect("reads");
    world.cells[0].seen().into_iter().map(|seen| (seen.target, seen.body.to_vec())).collect()
}

/// What was read, the host's requests but for those that are refused one by one.
fn expected(bytes: &[u8]) -> Seen {
    let reading = requests(&[bytes]);
    assert!(reading.over || reading.error.is_some(), "nothing is left to wait for");
    let (_, mut expected) = forward(&reading, Form::Whole);
    if reading.error == Some(Error::Host) {
        // Where such a request ends is clear, so that its connection goes on.
        expected.extend(forward(&requests(&[LAST]), Form::Whole).1);
    }
    expected.into_iter().map(|(_, target, body)| (target, body)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_sees_the_requests_that_were_read_and_no_others() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() };
    let world = world.start().await;
    for case in REQUESTS {
        let bytes = [case.bytes, LAST].concat();
        assert_eq!(seen(&world, &bytes).await, expected(&bytes), "{}", case.name);
    }
}
