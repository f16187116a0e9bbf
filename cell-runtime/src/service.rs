//! The services of the cell and their pods: which are known, which are ready, how busy each is. Who asks them is
//! `probe`'s, who calls them `call`'s.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bulkhead_crds::template;
use tokio::sync::Notify;

use crate::sender::{Idle, Multiplexed};
use crate::verdict::ServiceView;

/// One service and its pods.
pub(crate) struct Service {
    pub(crate) spec: template::Service,
    pods: ArcSwap<Vec<Arc<Pod>>>,
    listed: AtomicBool,
    /// Where the next choice among equals begins.
    next: AtomicUsize,
}

/// One pod of a service.
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    state: Mutex<State>,
    pub(crate) in_flight: AtomicU32,
    pub(crate) idle: Idle,
    pub(crate) multiplexed: Multiplexed,
    /// Asks the prober to probe now.
    pub(crate) wake: Notify,
}

/// What the probes found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unprobed,
    Ready,
    NotReady { why: String },
}

impl Service {
    pub(crate) fn new(spec: template::Service) -> Self {
        Self { spec, pods: ArcSwap::default(), listed: AtomicBool::new(false), next: AtomicUsize::new(0) }
    }

    pub(crate) fn pods(&self) -> Arc<Vec<Arc<Pod>>> {
        self.pods.load_full()
    }

    /// Takes the whole list of pods. Those known already stay as they are; the new ones are returned, to be probed.
    pub(crate) fn set_pods(&self, addresses: &[SocketAddr]) -> Vec<Arc<Pod>> {
        let before = self.pods();
        let mut new = Vec::new();
        let mut pods: Vec<Arc<Pod>> = Vec::with_capacity(addresses.len());
        for address in addresses {
            if pods.iter().any(|pod| pod.address == *address) {
                continue;
            }
            pods.push(before.iter().find(|pod| pod.address == *address).cloned().unwrap_or_else(|| {
                let pod = Arc::new(Pod::new(*address));
                new.push(Arc::clone(&pod));
                pod
            }));
        }
        self.pods.store(Arc::new(pods));
        self.listed.store(true, Ordering::SeqCst);
        new
    }

    /// The ready pod with the least under way that is not among `tried`; among equals, each in turn.
    pub(crate) fn choose(&self, tried: &[SocketAddr]) -> Option<Arc<Pod>> {
        let pods = self.pods.load();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        (0..pods.len())
            .map(|offset| &pods[start.wrapping_add(offset) % pods.len()])
            .filter(|pod| pod.is_ready() && !tried.contains(&pod.address))
            .min_by_key(|pod| pod.in_flight.load(Ordering::Relaxed))
            .cloned()
    }

    /// Whether it has fewer ready pods than it needs.
    pub(crate) fn is_short(&self) -> bool {
        let needed = self.spec.min_ready as usize;
        self.pods.load().iter().filter(|pod| pod.is_ready()).take(needed).count() < needed
    }

    pub(crate) fn view(&self) -> ServiceView {
        let pods = self.pods.load();
        let states: Vec<State> = pods.iter().map(|pod| pod.state()).collect();
        let count = |wanted: fn(&State) -> bool| {
            u32::try_from(states.iter().filter(|state| wanted(state)).count()).unwrap_or(u32::MAX)
        };
        ServiceView {
            name: self.spec.name.clone(),
            required: self.spec.required,
            min_ready: self.spec.min_ready,
            ready: count(|state| *state == State::Ready),
            known: count(|_| true),
            unprobed: count(|state| *state == State::Unprobed),
            listed: self.listed.load(Ordering::SeqCst),
            detail: pods.iter().zip(&states).find_map(|(pod, state)| match state {
                State::NotReady { why } => Some(format!("{} {why}", pod.address)),
                State::Unprobed | State::Ready => None,
            }),
        }
    }
}

impl Pod {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            state: Mutex::new(State::Unprobed),
            in_flight: AtomicU32::new(0),
            idle: Idle::default(),
            multiplexed: Multiplexed::default(),
            wake: Notify::new(),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) == State::Ready
    }

    /// True when the state is another than before, the words aside.
    pub(crate) fn set_state(&self, new: State) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = std::mem::discriminant(&*state) != std::mem::discriminant(&new);
        *state = new;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ports: &[u16]) -> Service {
        let service = Service::new(template::Service { name: "web".to_owned(), ..Default::default() });
        for pod in service.set_pods(&addresses(ports)) {
            pod.set_state(State::Ready);
        }
        service
    }

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    fn chosen(service: &Service, tried: &[u16]) -> Option<u16> {
        service.choose(&addresses(tried)).map(|pod| pod.address.port())
    }

    #[test]
    fn equals_take_turns_and_the_least_busy_goes_first() {
        let service = service(&[1, 2]);
        assert_ne!(chosen(&service, &[]), chosen(&service, &[]));
        service.pods()[0].in_flight.store(5, Ordering::Relaxed);
        assert_eq!((chosen(&service, &[]), chosen(&service, &[])), (Some(2), Some(2)));
        assert_eq!((chosen(&service, &[2]), chosen(&service, &[1, 2])), (Some(1), None));
    }

    #[test]
    fn a_new_list_keeps_what_is_known_of_pods_that_stay() {
        let service = service(&[1, 2]);
        let new = service.set_pods(&addresses(&[2, 3, 3]));
        assert_eq!(new.iter().map(|pod| pod.address.port()).collect::<Vec<_>>(), [3]);
        let view = service.view();
        assert_eq!((view.known, view.ready, view.unprobed), (2, 1, 1));
    }

    #[test]
    fn only_ready_pods_are_chosen_and_the_view_says_why_others_are_not() {
        let mut service = service(&[1]);
        assert!(service.pods()[0].set_state(State::NotReady { why: "answered 503".to_owned() }));
        assert!(!service.pods()[0].set_state(State::NotReady { why: "refused".to_owned() }));
        assert_eq!(chosen(&service, &[]), None);
        assert!(!service.is_short(), "it needs none");
        service.spec.min_ready = 1;
        assert!(service.is_short());
        assert_eq!(service.view().detail.as_deref(), Some("127.0.0.1:1 refused"));
    }
}
