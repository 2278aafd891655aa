//! Stores a stream's watches by id: [`ById`]. A single watch, the usual case, is stored without an
//! allocation.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// Items by watch id, in ascending order.
#[derive(Default)]
pub(super) enum ById<T> {
    #[default]
    None,
    One(i64, T),
    /// Two or more items. They are in a tree, so that look-ups and changes stay cheap however many watches,
    /// and whichever ids, the client chooses.
    #[expect(clippy::box_collection, reason = "few streams have more than one watch")]
    Many(Box<BTreeMap<i64, T>>),
}

impl<T> ById<T> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        match self {
            ById::None => 0,
            ById::One(..) => 1,
            ById::Many(many) => many.len(),
        }
    }

    /// Returns true if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if an item has this id.
    pub fn contains(&self, id: i64) -> bool {
        match self {
            ById::None => false,
            ById::One(its, _) => *its == id,
            ById::Many(many) => many.contains_key(&id),
        }
    }

    /// Inserts an item; no other item may have its id.
    pub fn insert(&mut self, id: i64, thing: T) {
        *self = match std::mem::take(self) {
            ById::None => ById::One(id, thing),
            ById::One(other, first) => ById::Many(Box::new(BTreeMap::from([(other, first), (id, thing)]))),
            ById::Many(mut many) => {
                many.insert(id, thing);
                ById::Many(many)
            }
        };
    }

    /// Removes and returns the item with this id, if it exists.
    pub fn remove(&mut self, id: i64) -> Option<T> {
        match self {
            ById::Many(many) => many.remove(&id),
            _ if !self.contains(id) => None,
            _ => self.pop_first().map(|(_, thing)| thing),
        }
    }

    /// Removes and returns the first item, with its id.
    pub fn pop_first(&mut self) -> Option<(i64, T)> {
        match self {
            ById::Many(many) => many.pop_first(),
            _ => match std::mem::take(self) {
                ById::One(id, thing) => Some((id, thing)),
                ById::None | ById::Many(_) => None,
            },
        }
    }

    /// Returns the items with ids in these bounds, in ascending order.
    pub fn range(&self, ids: impl RangeBounds<i64>) -> impl Iterator<Item = (i64, &T)> {
        let (one, many) = match self {
            ById::None => (None, None),
            ById::One(id, thing) => (ids.contains(id).then_some((*id, thing)), None),
            ById::Many(many) => (None, Some(many.range(ids))),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(id, thing)| (*id, thing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_found_whether_they_are_one_or_more() {
        let mut things = ById::default();
        for count in 0..4_i64 {
            assert_eq!((things.len(), things.is_empty()), (count as usize, count == 0));
            let ids = |from| things.range(from..).map(|(id, thing)| (id, *thing)).collect::<Vec<_>>();
            let all: Vec<(i64, i64)> = (10 - count..10).map(|id| (id, -id)).collect();
            assert_eq!(ids(i64::MIN), all);
            assert_eq!(ids(9), all[all.len().saturating_sub(1)..]);
            assert_eq!(ids(10), []);
            assert!(!things.contains(9 - count));
            things.insert(9 - count, count - 9);
            assert!(things.contains(9 - count));
        }
        assert_eq!((things.remove(5), things.remove(8)), (None, Some(-8)));
        assert_eq!((things.pop_first(), things.remove(9)), (Some((6, -6)), Some(-9)));
        assert_eq!((things.pop_first(), things.pop_first(), things.len()), (Some((7, -7)), None, 0));
        let mut one = ById::default();
        one.insert(3, 'a');
        assert_eq!((one.remove(4), one.remove(3), one.remove(3)), (None, Some('a'), None));
        one.insert(3, 'b');
        assert_eq!((one.pop_first(), one.pop_first(), one.is_empty()), (Some((3, 'b')), None, true));
    }
}
