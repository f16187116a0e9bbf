//! Buffers of one thread that nobody uses now. A connection has one for as long as bytes are in it, and none while it is
//! quiet.

use std::cell::RefCell;

use bytes::BytesMut;

/// Bytes that are read at once.
pub(super) const CHUNK: usize = 8 * 1024;
/// Bytes of a buffer that heads are written into, at which it is not kept.
const MOST_OUT: usize = 16 * 1024;
/// Buffers that are kept of each kind.
const MOST: usize = 512;

thread_local! {
    static INBOUND: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    static OUT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer to read into.
pub(super) fn inbound() -> BytesMut {
    INBOUND.with_borrow_mut(Vec::pop).unwrap_or_else(|| BytesMut::with_capacity(CHUNK))
}

/// Takes a buffer back. One of which slices are still in use goes when these do.
pub(super) fn give_inbound(mut buffer: BytesMut) {
    buffer.clear();
    let is_fit = buffer.try_reclaim(CHUNK) && buffer.capacity() < 2 * CHUNK;
    INBOUND.with_borrow_mut(|free| {
        if is_fit && free.len() < MOST {
            free.push(buffer);
        }
    });
}

/// An empty buffer to write into.
pub(super) fn out() -> Vec<u8> {
    OUT.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(1024))
}

pub(super) fn give_out(mut buffer: Vec<u8>) {
    buffer.clear();
    OUT.with_borrow_mut(|free| {
        if (1..MOST_OUT).contains(&buffer.capacity()) && free.len() < MOST {
            free.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_nobody_has_a_part_of_it() {
        let mut buffer = inbound();
        let place = buffer.as_ptr();
        buffer.extend_from_slice(b"head and more");
        drop(buffer.split_to(4).freeze());
        give_inbound(buffer);
        let mut again = inbound();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        again.extend_from_slice(b"head");
        let head = again.split().freeze();
        give_inbound(again);
        assert_ne!(inbound().as_ptr(), place, "a part of it is in use");
        assert_eq!(head, "head");
    }
}
