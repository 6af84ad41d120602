//! Members of a collective, and the keys of their messages.

use super::point_to_point::{Key, MessageKind};
use partita_program::View;
use partita_space::Rank;

/// The members of a group of ranks, ascending, and the index of this rank among them.
pub(super) struct CollectiveMembers {
    pub(super) members: Vec<Rank>,
    pub(super) own_index: usize,
}

impl CollectiveMembers {
    pub(super) fn new(members: Vec<Rank>, rank: Rank) -> Self {
        let own_index = members.iter().position(|&member| member == rank);
        let own_index =
            own_index.unwrap_or_else(|| panic!("rank {rank} is no member of {members:?}"));
        Self { members, own_index }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn check(&self, views: &[View], what: &str) {
        assert_eq!(
            views.len(),
            self.len(),
            "{what} and members of a collective"
        );
    }

    /// Index and rank of all other members.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, Rank)> {
        let members = self.members.iter().copied().enumerate();
        members.filter(|&(index, _)| index != self.own_index)
    }
}

pub(super) fn key(kind: MessageKind, sequence: u32, from: Rank) -> Key {
    Key {
        kind,
        sequence,
        from,
        part: 0,
    }
}
