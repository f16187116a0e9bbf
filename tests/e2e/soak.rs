//! The same promises over a longer time, for `cargo xtask soak`.

use std::time::Duration;

use crate::{outage, steady};

#[test]
fn a_cluster_at_rest_is_not_written_to_for_ten_minutes() {
    steady::is_left_alone(Duration::from_mins(10));
}

#[test]
fn nothing_fails_while_the_api_server_is_away_for_half_an_hour() {
    outage::survives(Duration::from_mins(30));
}
