//! The bytes of an index.
//!
//! All numbers are little-endian. After the head, each part begins at the end of the previous one:
//!
//! | part | bytes |
//! |---|---|
//! | head: [`MAGIC`], then [`Head`]'s numbers in order | 56 |
//! | hash of the `tokenizer.json` (SHA-256) | 32 |
//! | for each id, the end of its token in the tokens' bytes | 4 · tokens |
//! | hash table of tokens: ids plus one, 0 for an empty slot (open addressing, linear) | 4 · slots |
//! | for each id and one more, the first merge whose left half it is | 4 · (tokens + 1) |
//! | merges by left and right half: right half, rank, result | 12 · merges |
//! | tokens, in the order of their ids | specified in the head |
//! | the rest of the `tokenizer.json`, as JSON | specified in the head |
//! | hash of everything before (SHA-256) | 32 |

use sha2::{Digest, Sha256};

/// First bytes of an index. The number identifies this layout.
const MAGIC: &[u8; 16] = b"token index   1\n";
const HEAD: usize = MAGIC.len() + 4 * 6 + 8 * 2;
pub(super) const HASH: usize = 32;
const MERGE: usize = 12;
/// Most slots that are probed for a token. The known vocabularies need at most a tenth of it. A
/// vocabulary with colliding tokens, made on purpose, would need hours.
const PROBES_MAX: u32 = 512;
/// Placeholder for a missing id.
const NONE: u32 = u32::MAX;

/// The numbers at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub tokens: u32,
    /// A power of two, greater than the number of tokens.
    pub slots: u32,
    pub merges: u32,
    /// The token for unknown characters.
    pub unknown: Option<u32>,
    pub rules: Rules,
    pub token_bytes: u64,
    pub rest_bytes: u64,
}

/// Special rules of merging, named after the model's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

/// Offsets of the parts of an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub head: Head,
    ends: usize,
    slots: usize,
    firsts: usize,
    merges: usize,
    tokens: usize,
    rest: usize,
    hash: usize,
}

/// A merge, without its left half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub right: u32,
    pub rank: u32,
    pub result: u32,
}

impl Layout {
    fn of(head: Head) -> Option<Layout> {
        let part = |from: usize, count: u64, each: usize| {
            from.checked_add(usize::try_from(count).ok()?.checked_mul(each)?)
        };
        let ends = HEAD + HASH;
        let slots = part(ends, head.tokens.into(), 4)?;
        let firsts = part(slots, head.slots.into(), 4)?;
        let merges = part(firsts, u64::from(head.tokens) + 1, 4)?;
        let tokens = part(merges, head.merges.into(), MERGE)?;
        let rest = part(tokens, head.token_bytes, 1)?;
        let hash = part(rest, head.rest_bytes, 1)?;
        hash.checked_add(HASH)?;
        Some(Layout { head, ends, slots, firsts, merges, tokens, rest, hash })
    }

    /// Reads the layout of an index, whose length must match its head. The contents of its parts
    /// are not checked.
    pub fn read(bytes: &[u8]) -> Option<Layout> {
        let numbers = bytes.strip_prefix(MAGIC)?;
        let short = |at: usize| Some(u32::from_le_bytes(*numbers.get(4 * at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*numbers.get(24 + 8 * at..)?.first_chunk()?));
        let rules = short(4)?;
        let head = Head {
            tokens: short(0)?,
            slots: short(1)?,
            merges: short(2)?,
            unknown: Some(short(3)?).filter(|id| *id != NONE),
            rules: Rules {
                fuse_unk: rules & 1 != 0,
                byte_fallback: rules & 2 != 0,
                ignore_merges: rules & 4 != 0,
            },
            token_bytes: long(0)?,
            rest_bytes: long(1)?,
        };
        let layout = Layout::of(head)?;
        let fits = head.slots.is_power_of_two() && head.slots > head.tokens && rules < 8;
        (fits && bytes.len() == layout.hash + HASH).then_some(layout)
    }

    /// Returns the hash of the `tokenizer.json`.
    pub fn source(self, bytes: &[u8]) -> &[u8] {
        bytes.get(HEAD..self.ends).unwrap_or_default()
    }

    /// Checks whether the index is unchanged since it was written.
    pub fn is_whole(self, bytes: &[u8]) -> bool {
        bytes.split_at_checked(self.hash).is_some_and(|(all, hash)| Sha256::digest(all)[..] == *hash)
    }

    /// Returns the spelling of an id. `None` beyond the vocabulary, or if the index is damaged.
    pub fn token(self, bytes: &[u8], id: u32) -> Option<&[u8]> {
        if id >= self.head.tokens {
            return None;
        }
        let begin = if id == 0 { 0 } else { number(bytes, self.ends, id as usize - 1)? };
        let end = number(bytes, self.ends, id as usize)?;
        bytes.get(self.tokens..self.rest)?.get(begin as usize..end as usize)
    }

    /// Returns the id of a spelling.
    pub fn find(self, bytes: &[u8], token: &[u8]) -> Option<u32> {
        let mask = self.head.slots - 1;
        let mut slot = spread(token) & mask;
        for _ in 0..PROBES_MAX.min(self.head.slots) {
            let id = number(bytes, self.slots, slot as usize)?.checked_sub(1)?;
            if self.token(bytes, id)? == token {
                return Some(id);
            }
            slot = slot.wrapping_add(1) & mask;
        }
        None
    }

    /// Returns the merge of two tokens. `None` if they cannot be merged.
    pub fn merge(self, bytes: &[u8], left: u32, right: u32) -> Option<Merge> {
        if left >= self.head.tokens {
            return None;
        }
        let first = number(bytes, self.firsts, left as usize)? as usize;
        let end = number(bytes, self.firsts, left as usize + 1)? as usize;
        let of = |at: usize| {
            let place = self.merges + at * MERGE;
            Some(Merge {
                right: number(bytes, place, 0)?,
                rank: number(bytes, place, 1)?,
                result: number(bytes, place, 2)?,
            })
        };
        // The bytes after the merges belong to a different part.
        let (mut low, mut high) = (first, end.min(self.head.merges as usize));
        while low < high {
            let middle = low + (high - low) / 2;
            let merge = of(middle)?;
            match merge.right.cmp(&right) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(merge),
            }
        }
        None
    }

    /// Returns the rest of the file.
    pub fn rest(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.rest..self.hash).unwrap_or_default()
    }
}

fn number(bytes: &[u8], part: usize, at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(part + 4 * at..)?.first_chunk()?))
}

/// Computes FNV-1a, with the high bits folded into the low ones.
fn spread(token: &[u8]) -> u32 {
    let hash = token
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    (hash ^ (hash >> 32)) as u32
}

/// An index under construction.
pub(super) struct Writer {
    bytes: Vec<u8>,
    layout: Layout,
}

impl Writer {
    /// Starts an index of tokens in the order of their ids. `None` if two are equal, if there are
    /// too many, or if too many collide.
    pub fn new(
        source: [u8; HASH],
        tokens: &[&str],
        merges: usize,
        unknown: Option<&str>,
        rules: Rules,
        rest: &[u8],
    ) -> Option<Writer> {
        let count = u32::try_from(tokens.len()).ok()?;
        let head = Head {
            tokens: count,
            slots: count.checked_add(1)?.checked_mul(2)?.checked_next_power_of_two()?,
            merges: u32::try_from(merges).ok()?,
            unknown: None,
            rules,
            token_bytes: tokens.iter().map(|token| token.len() as u64).sum(),
            rest_bytes: rest.len() as u64,
        };
        u32::try_from(head.token_bytes).ok()?;
        let layout = Layout::of(head)?;
        let mut writer = Writer { bytes: vec![0; layout.hash + HASH], layout };
        writer.bytes[HEAD..layout.ends].copy_from_slice(&source);
        writer.bytes[layout.rest..layout.hash].copy_from_slice(rest);
        let mut end = 0;
        for (id, token) in tokens.iter().enumerate() {
            writer.bytes[layout.tokens + end..][..token.len()].copy_from_slice(token.as_bytes());
            end += token.len();
            writer.put(layout.ends, id, end as u32);
        }
        for (id, token) in tokens.iter().enumerate() {
            writer.enter(id as u32, token.as_bytes())?;
        }
        if let Some(token) = unknown {
            writer.layout.head.unknown = Some(writer.id(token)?);
        }
        Some(writer)
    }

    fn put(&mut self, part: usize, at: usize, number: u32) {
        self.bytes[part + 4 * at..][..4].copy_from_slice(&number.to_le_bytes());
    }

    /// Adds a token. `None` if it already exists, or if there is no free slot near its place.
    fn enter(&mut self, id: u32, token: &[u8]) -> Option<()> {
        let mask = self.layout.head.slots - 1;
        let mut slot = spread(token) & mask;
        for _ in 0..PROBES_MAX {
            match number(&self.bytes, self.layout.slots, slot as usize)?.checked_sub(1) {
                None => {
                    self.put(self.layout.slots, slot as usize, id + 1);
                    return Some(());
                }
                Some(other) if self.layout.token(&self.bytes, other)? == token => return None,
                Some(_) => slot = (slot + 1) & mask,
            }
        }
        None
    }

    /// Returns the id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.layout.find(&self.bytes, token.as_bytes())
    }

    /// Adds the merges, each given with its left half, and returns the index. `None` if a pair
    /// occurs twice, or if their number differs from the number passed to `new`.
    pub fn finish(mut self, mut merges: Vec<(u32, Merge)>) -> Option<Vec<u8>> {
        let (layout, head) = (self.layout, self.layout.head);
        merges.sort_unstable_by_key(|(left, merge)| (*left, merge.right));
        let pair = |(left, merge): &(u32, Merge)| (*left, merge.right);
        if merges.len() != head.merges as usize || merges.windows(2).any(|two| pair(&two[0]) == pair(&two[1]))
        {
            return None;
        }
        for (at, (_, merge)) in merges.iter().enumerate() {
            for (member, value) in [merge.right, merge.rank, merge.result].into_iter().enumerate() {
                self.put(layout.merges, 3 * at + member, value);
            }
        }
        let mut at = 0;
        for left in 0..=head.tokens {
            while merges.get(at).is_some_and(|(other, _)| *other < left) {
                at += 1;
            }
            self.put(layout.firsts, left as usize, at as u32);
        }
        let Rules { fuse_unk, byte_fallback, ignore_merges } = head.rules;
        let rules = u32::from(fuse_unk) | u32::from(byte_fallback) << 1 | u32::from(ignore_merges) << 2;
        self.bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let numbers = [head.tokens, head.slots, head.merges, head.unknown.unwrap_or(NONE), rules, 0];
        for (at, number) in numbers.into_iter().enumerate() {
            self.put(MAGIC.len(), at, number);
        }
        for (at, number) in [head.token_bytes, head.rest_bytes].into_iter().enumerate() {
            self.bytes[MAGIC.len() + 24 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let hash = Sha256::digest(&self.bytes[..layout.hash]);
        self.bytes[layout.hash..].copy_from_slice(&hash);
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(tokens: &[String]) -> Option<Vec<u8>> {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        Writer::new([0; HASH], &tokens, 0, None, Rules::default(), b"{}")?.finish(Vec::new())
    }

    /// If all tokens of a vocabulary collide, on purpose, the time to write it and the time of
    /// every search grow with the square of its size.
    #[test]
    fn tokens_that_meet_are_left_to_the_library() {
        let slots = 2048;
        let all = (0u32..).map(|number| format!("{number:x}"));
        let meeting = all.filter(|token| spread(token.as_bytes()).is_multiple_of(slots));
        let meeting: Vec<String> = meeting.take(1 + PROBES_MAX as usize).collect();
        let few = index(&meeting[..PROBES_MAX as usize]).expect("each finds a place");
        let layout = Layout::read(&few).expect("an index");
        for (id, token) in meeting[..PROBES_MAX as usize].iter().enumerate() {
            assert_eq!(layout.find(&few, token.as_bytes()), Some(id as u32));
        }
        assert_eq!(layout.head.slots, slots);
        assert_eq!(index(&meeting), None);
    }

    #[test]
    fn tokens_that_are_equal_are_left_to_the_library() {
        assert_eq!(index(&["a".to_owned(), "b".to_owned(), "a".to_owned()]), None);
    }
}
