//! The codec from outside: bytes in, messages out, whatever they are and however they are cut; and what others make of the
//! same bytes.

mod beside;
mod cases;
mod forwarding;
mod hyper;
mod inputs;
mod reading;
mod rules;
mod splits;
mod trips;
