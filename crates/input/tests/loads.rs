//! Counts of what ranks load.

use partita_input::{EpochLoads, LoadTally};
use partita_space::Bytes;

fn read(bytes: u64) -> EpochLoads {
    EpochLoads {
        read: Bytes(bytes),
        ..EpochLoads::default()
    }
}

/// Ranks that are processes tell rank 0 at the end of each epoch what they have loaded since the one before, however many
/// epochs a run has.
#[test]
fn epochs_are_counted_from_the_first_on_and_kept_only_where_something_was_loaded() {
    let tally = LoadTally::from_epoch(3);
    tally.add(0, 4, read(10));
    tally.add(1, 4, read(5));
    tally.set_rank(2, &[(4, read(1)), (6, read(2))].into());
    let of_epoch = [0, 3, 4, 5, 6, u64::MAX].map(|epoch| tally.epoch(epoch));
    let expected = [
        None,
        Some(read(0)),
        Some(read(16)),
        Some(read(0)),
        Some(read(2)),
        Some(read(0)),
    ];
    assert_eq!(of_epoch, expected);
    assert_eq!(tally.of_rank(2, 5), [(6, read(2))].into());
    assert_eq!(tally.of_rank(0, 5), [].into());
}
