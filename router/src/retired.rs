//! What was in force, for as long as somebody still looks at it: so that its memory is freed by whoever made it, and never by
//! the request path, for which freeing thousands of rules is a long time.

use std::sync::Arc;

/// In the order in which they were replaced.
#[derive(Debug)]
pub(crate) struct Retired<T>(Vec<Arc<T>>);

impl<T> Default for Retired<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Retired<T> {
    /// Keeps what was replaced.
    pub(crate) fn keep(&mut self, replaced: Arc<T>) {
        self.0.push(replaced);
    }

    /// Frees what nobody else holds any more. Nobody can take hold of it again, since it is in force no longer.
    pub(crate) fn free(&mut self) {
        self.0.retain(|replaced| Arc::strong_count(replaced) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_replaced_lives_until_nobody_else_holds_it() {
        let (mut retired, [a, b]) = (Retired::default(), [Arc::new('a'), Arc::new('b')]);
        let gone = Arc::downgrade(&a);
        retired.keep(Arc::clone(&a));
        retired.keep(Arc::clone(&b));
        drop(a);
        assert!(gone.upgrade().is_some(), "the last who held it does not free it");
        retired.free();
        assert!(gone.upgrade().is_none());
        assert_eq!(Arc::strong_count(&b), 2);
    }
}
