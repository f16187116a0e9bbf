//! Random bytes from the system, taken a page at a time and handed out on each thread.

use std::cell::RefCell;

const PAGE: usize = 1024;

struct Page {
    bytes: [u8; PAGE],
    used: usize,
}

thread_local! {
    static RANDOM: RefCell<Page> = const { RefCell::new(Page { bytes: [0; PAGE], used: PAGE }) };
}

/// Bytes that nobody had before.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    RANDOM.with_borrow_mut(|page| {
        if page.used + N > PAGE {
            // Without the system's randomness ids would repeat less randomly, but their time still tells them apart.
            if let Err(error) = getrandom::fill(&mut page.bytes) {
                tracing::error!(%error, "the system gives no random bytes");
            }
            page.used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&page.bytes[page.used..page.used + N]);
        page.used += N;
        out
    })
}

/// A place in a list of that length, which is not empty.
pub(crate) fn below(length: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes())) % length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_differ_and_pages_are_filled_again() {
        let drawn: std::collections::HashSet<[u8; 10]> = (0..1_000).map(|_| bytes()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
