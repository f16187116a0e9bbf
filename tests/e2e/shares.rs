//! The same key goes to the same cell, through whichever router.

use bulkhead_tests::World;
use bulkhead_tests::pods::routers;
use bulkhead_tests::traffic::{Request, send};

const KEYS: u32 = 2_000;

#[test]
fn two_routers_agree_on_every_key_and_the_share_is_the_weight() {
    let (world, _turn) = World::enter();
    let routers = routers(world).expect("routers");
    assert!(routers.len() >= 2, "the chart runs two routers");
    let mut to_a = 0;
    for key in 0..KEYS {
        let request = Request::get("/").header("x-account", &format!("account-{key}"));
        let cells: Vec<_> = routers
            .iter()
            .map(|router| {
                send(*router, &request).expect("answered").cell().map(str::to_owned).expect("explain is on")
            })
            .collect();
        assert!(cells.windows(2).all(|pair| pair[0] == pair[1]), "key {key}: {cells:?}");
        to_a += u32::from(cells[0] == "payments-a");
    }
    // 80 % of 2,000 keys; four standard deviations of a binomial are 72.
    assert!(
        (1_528..=1_672).contains(&to_a),
        "{to_a} of {KEYS} keys went to payments-a, whose weight is 80 of 100"
    );
}
