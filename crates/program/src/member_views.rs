//! The views of a collective: one for each member of its group, or those of a bucket.
//!
//! Thousands of members have as many views. Where these are the parts of one view, split evenly over the members, they
//! are kept as that view and how it is split; so costs and texts do not grow with the group.

use crate::{Buffer, View};
use partita_space::{Bytes, Mesh, Split};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::slice;
use std::str::FromStr;

/// A view for each member of a group, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberViews {
    /// One by one.
    Each(Vec<View>),
    /// The parts of one view.
    Split(SplitView),
}

/// A view that is split over the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitView {
    /// The view that is split.
    pub whole: View,
    /// For each axis of the group, the outermost first, the dim that it splits, below 5, and into how many parts. Each splits
    /// evenly what those before have left. The last axis varies fastest from member to member.
    pub levels: Vec<(usize, usize)>,
}

impl SplitView {
    /// Number of members.
    pub fn len(&self) -> usize {
        let parts = self.levels.iter().map(|&(_, parts)| parts);
        parts.fold(1, usize::saturating_mul)
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The view of a member; one without elements starts where the whole starts.
    pub fn part(&self, member: usize) -> View {
        let mut digits = [0; 7];
        let mut rest = member;
        for (digit, &(_, parts)) in digits.iter_mut().zip(&self.levels).rev() {
            (*digit, rest) = (rest % parts, rest / parts);
        }
        let mut inside = self.whole.region();
        for (digit, &(dim, parts)) in digits.into_iter().zip(&self.levels) {
            let all = inside.0[dim];
            let extent = all.len();
            inside.0[dim] = Split { extent, parts }.part(digit).shift(all.start);
        }
        if inside.is_empty() {
            return View {
                extent: [0; 5],
                ..self.whole
            };
        }
        View::of(self.whole.buffer, &inside)
    }

    /// The extents of all parts, and how many parts have each.
    fn extents(&self) -> BTreeMap<[usize; 5], usize> {
        let mut all = BTreeMap::from([(self.whole.extent, 1)]);
        for &(dim, parts) in &self.levels {
            let mut next = BTreeMap::new();
            for (extent, count) in all {
                let (least, larger) = (extent[dim] / parts, extent[dim] % parts);
                for (length, times) in [(least, parts - larger), (least + 1, larger)] {
                    let mut part = extent;
                    part[dim] = length;
                    *next.entry(part).or_insert(0) += count * times;
                }
            }
            all = next;
            all.retain(|_, count| *count > 0);
        }
        all
    }
}

impl fmt::Display for SplitView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by ", self.whole)?;
        for (at, (dim, parts)) in self.levels.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{dim}*{parts}")?;
        }
        Ok(())
    }
}

/// A text that is not a view split over members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a view split over members; one reads `b7[0:1,0:4,0:4,0:4,0:16] by 4*2,3*2`: dim 4 in 2 parts, and each of \
     them along dim 3 in 2"
)]
pub struct SplitViewError(String);

impl FromStr for SplitView {
    type Err = SplitViewError;
    fn from_str(text: &str) -> Result<Self, SplitViewError> {
        parse(text).ok_or_else(|| SplitViewError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<SplitView> {
    let (whole, levels) = text.split_once(" by ")?;
    let level = |level: &str| {
        let (dim, parts) = level.split_once('*')?;
        let (dim, parts) = (dim.parse().ok()?, parts.parse().ok()?);
        (dim < 5 && parts > 0).then_some((dim, parts))
    };
    let levels: Vec<(usize, usize)> = levels.split(',').map(level).collect::<Option<_>>()?;
    let whole = whole.parse().ok()?;
    let split = SplitView { whole, levels };
    (split.levels.len() <= 7 && split.len() <= Mesh::RANKS_MAX).then_some(split)
}

impl MemberViews {
    /// As they are read.
    pub fn views(&self) -> Views<'_> {
        match self {
            MemberViews::Each(views) => Views::Each(views),
            MemberViews::Split(split) => Views::Split(split),
        }
    }

    /// One by one, so that any can be changed.
    pub fn each_mut(&mut self) -> &mut Vec<View> {
        if let MemberViews::Split(split) = self {
            *self = MemberViews::Each(Views::Split(split).to_vec());
        }
        match self {
            MemberViews::Each(views) => views,
            MemberViews::Split(_) => panic!("just listed"),
        }
    }

    /// Calls `f` with each view, or the one that is split.
    pub(crate) fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        match self {
            MemberViews::Each(views) => views.iter_mut().for_each(f),
            MemberViews::Split(split) => f(&mut split.whole),
        }
    }
}

impl From<Vec<View>> for MemberViews {
    fn from(views: Vec<View>) -> Self {
        MemberViews::Each(views)
    }
}

impl FromIterator<View> for MemberViews {
    fn from_iter<I: IntoIterator<Item = View>>(views: I) -> Self {
        MemberViews::Each(views.into_iter().collect())
    }
}

impl Serialize for MemberViews {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            MemberViews::Each(views) => views.serialize(to),
            MemberViews::Split(split) => to.collect_str(split),
        }
    }
}

impl<'d> Deserialize<'d> for MemberViews {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ListOrText)
    }
}

/// Reads a list of views, or the text of one that is split.
struct ListOrText;

impl<'d> Visitor<'d> for ListOrText {
    type Value = MemberViews;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of views, or a view that is split over members")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<MemberViews, E> {
        text.parse().map(MemberViews::Split).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'d>>(self, mut views: A) -> Result<MemberViews, A::Error> {
        let mut all = Vec::new();
        while let Some(view) = views.next_element()? {
            all.push(view);
        }
        Ok(MemberViews::Each(all))
    }
}

/// The send or receive buffers of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Views<'a> {
    /// One by one.
    Each(&'a [View]),
    /// The parts of one view.
    Split(&'a SplitView),
}

impl<'a> Views<'a> {
    /// One view.
    pub fn one(view: &'a View) -> Self {
        Views::Each(slice::from_ref(view))
    }

    /// Number of views.
    pub fn len(&self) -> usize {
        match self {
            Views::Each(views) => views.len(),
            Views::Split(split) => split.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each view in its order.
    pub fn iter(self) -> impl Iterator<Item = View> + use<'a> {
        let (views, split) = match self {
            Views::Each(views) => (views, None),
            Views::Split(split) => (&[][..], Some(split)),
        };
        let parts = split.map(|split| (0..split.len()).map(|member| split.part(member)));
        views.iter().copied().chain(parts.into_iter().flatten())
    }

    /// All views, one by one.
    pub fn to_vec(self) -> Vec<View> {
        self.iter().collect()
    }

    /// The view at an index; none where there are fewer.
    pub fn get(&self, at: usize) -> Option<View> {
        match self {
            Views::Each(views) => views.get(at).copied(),
            Views::Split(split) => (at < split.len()).then(|| split.part(at)),
        }
    }

    /// Views that have the same elements: of one that is split, the whole.
    pub fn joined(self) -> &'a [View] {
        match self {
            Views::Each(views) => views,
            Views::Split(split) => slice::from_ref(&split.whole),
        }
    }

    /// The extents of all views, and how many have each; for each run of equal ones, or each extent of one that is split.
    pub fn extents(self) -> Vec<([usize; 5], usize)> {
        match self {
            Views::Each(views) => {
                let runs = views.chunk_by(|a, b| a.extent == b.extent);
                runs.map(|run| (run[0].extent, run.len())).collect()
            }
            Views::Split(split) => split.extents().into_iter().collect(),
        }
    }

    /// Bytes of all views.
    pub fn bytes(self, buffers: &[Buffer]) -> Bytes {
        self.joined().iter().map(|view| view.bytes(buffers)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferId;

    fn whole(extent: [usize; 5]) -> View {
        View {
            buffer: BufferId(3),
            start: [1, 0, 2, 0, 5],
            extent,
        }
    }

    #[test]
    fn parts_cover_the_whole_once_and_read_as_they_print() {
        let cases = [
            ([1, 1, 3, 4, 12], vec![(4, 4)]),
            ([1, 1, 3, 4, 13], vec![(4, 3), (4, 2)]),
            ([2, 3, 3, 5, 7], vec![(4, 2), (3, 3), (4, 3)]),
            ([1, 1, 1, 1, 3], vec![(4, 2), (4, 4)]),
            ([0, 1, 1, 1, 3], vec![(4, 2)]),
        ];
        for (extent, levels) in cases {
            let whole = whole(extent);
            let split = SplitView { whole, levels };
            assert_eq!(split.to_string().parse(), Ok(split.clone()));
            let views = Views::Split(&split);
            let parts: Vec<View> = views.iter().collect();
            assert_eq!(parts.len(), views.len());
            let volumes: usize = parts.iter().map(View::volume).sum();
            assert_eq!(volumes, split.whole.volume(), "{split}");
            for (at, part) in parts.iter().enumerate() {
                assert_eq!(views.get(at), Some(*part));
                let is_inside = split.whole.region().holds(&part.region());
                assert!(is_inside || part.is_empty(), "{part} of {split}");
                let mut others = parts[..at].iter();
                let overlap = |other: &View| !other.region().intersect(&part.region()).is_empty();
                assert!(!others.any(overlap), "{part} of {split}");
            }
            let mut counted = BTreeMap::new();
            for (extent, count) in views.extents() {
                let key = if extent.contains(&0) { [0; 5] } else { extent };
                *counted.entry(key).or_insert(0) += count;
            }
            let mut expected = BTreeMap::new();
            for part in &parts {
                *expected.entry(part.extent).or_insert(0) += 1;
            }
            assert_eq!(counted, expected, "{split}");
        }
    }

    #[test]
    fn both_forms_are_read() {
        let split: MemberViews = ron::from_str("\"b3[0:1,0:1,0:1,0:2,0:4] by 4*2,3*2\"").unwrap();
        let mut listed = split.clone();
        assert_eq!(listed.each_mut()[2].to_string(), "b3[0:1,0:1,0:1,0:1,2:4]");
        for views in [split, listed] {
            let text = ron::to_string(&views).unwrap();
            assert_eq!(ron::from_str::<MemberViews>(&text), Ok(views));
        }
        for wrong in [
            "b3[0:1,0:1,0:1,0:2,0:4]",
            "b3[0:1,0:1,0:1,0:2,0:4] by 4*9000000000,3*9000000000",
            "b3[0:1,0:1,0:1,0:2,0:4] by 4*0",
            "b3 by 4*2",
            "b3[0:1,0:1,0:1,0:2,0:4] by 5*2",
        ] {
            let error = wrong.parse::<SplitView>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
