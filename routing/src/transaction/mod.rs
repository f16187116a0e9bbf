//! The life of a transaction between router, cells and destinations, apart from all I/O: its [`course`] in order, what
//! follows a failure ([`restart`]), and what restarts may cost ([`Budget`]).

mod budget;
pub mod course;
pub mod restart;

pub use budget::Budget;
pub use course::{Asked, Back, Delivered, Hands, Reply, Sent, run};
pub use restart::{Failure, Next, RestartPolicy, Situation, Stage};
