//! Places with numbers, which the kernel gives back with its events. A number is used again when its place is free.

pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The number that the next one gets.
    pub(crate) fn next(&self) -> usize {
        self.free.last().copied().unwrap_or(self.places.len())
    }

    pub(crate) fn insert(&mut self, value: T) -> usize {
        let place = self.next();
        if self.free.pop().is_none() {
            self.places.push(None);
        }
        self.places[place] = Some(value);
        place
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.places.get_mut(place)?.as_mut()
    }

    pub(crate) fn remove(&mut self, place: usize) {
        if self.places.get_mut(place).and_then(Option::take).is_some() {
            self.free.push(place);
        }
    }

    /// Lets go of all others.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        for place in 0..self.places.len() {
            if self.places[place].as_ref().is_some_and(|value| !keeps(value)) {
                self.remove(place);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_and_removing_twice_is_once() {
        let mut slab = Slab::new();
        assert_eq!([slab.insert('a'), slab.insert('b'), slab.insert('c')], [0, 1, 2]);
        slab.remove(1);
        slab.remove(1);
        assert_eq!((slab.len(), slab.next(), slab.get_mut(1)), (2, 1, None));
        assert_eq!((slab.insert('d'), slab.next()), (1, 3));
        assert_eq!(slab.iter().collect::<String>(), "adc");
    }
}
