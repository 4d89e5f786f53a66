//! Cuts a text into windows as `llama-perplexity` does.

use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Windows of equal length. Each is run from an empty KV cache, and its last tokens are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Tokens in a window.
    pub length: usize,
    /// Distance between the beginnings of consecutive windows, in tokens.
    step: usize,
    /// Tokens at the end of a window that are scored.
    pub scored: usize,
    /// Number of windows.
    pub count: usize,
    /// Tokens after the last window, which are not run.
    pub left: usize,
    /// Replaces the first token of each window.
    bos: Option<u32>,
}

impl Windows {
    /// Cuts adjacent windows of `length` tokens. The first half of each window is context. The
    /// token after the context is not scored either, because `llama-perplexity` starts with the
    /// logits that follow it. `bos` replaces the first token of each window.
    pub fn adjacent(tokens: usize, length: usize, most: Option<usize>, bos: Option<u32>) -> Result<Self> {
        let scored = length.saturating_sub(1 + length / 2);
        if scored == 0 {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("a window of {length} tokens has nothing to score"),
            )
            .with_help("use a window of at least 3 tokens"));
        }
        let count = (tokens / length).min(most.unwrap_or(usize::MAX));
        if count == 0 {
            return Err(too_short(tokens, length, tokens));
        }
        Ok(Windows { length, step: length, scored, count, left: tokens - count * length, bos })
    }

    /// Cuts windows of `length` tokens that begin `stride` tokens apart. The last `stride` tokens
    /// of each window are scored. As in `llama-perplexity`, no BOS token replaces the first token
    /// of a window.
    pub fn strided(tokens: usize, length: usize, stride: usize, most: Option<usize>) -> Result<Self> {
        if stride == 0 || stride >= length {
            let what = format!("a stride of {stride} does not fit a window of {length} tokens");
            return Err(Error::new(ErrorKind::Argument, what)
                .with_help("use a stride of at least 1 that is less than the window"));
        }
        if tokens <= length {
            return Err(too_short(tokens, length + 1, tokens.saturating_sub(1)));
        }
        let count = (tokens - length).div_ceil(stride).min(most.unwrap_or(usize::MAX));
        let left = tokens - ((count - 1) * stride + length);
        Ok(Windows { length, step: stride, scored: stride, count, left, bos: None })
    }

    /// Returns the token ids of a window. The last one is predicted but not run.
    pub fn ids(&self, tokens: &[u32], window: usize) -> Vec<u32> {
        let start = window * self.step;
        let mut ids = tokens[start..start + self.length].to_vec();
        if let Some(bos) = self.bos {
            ids[0] = bos;
        }
        ids
    }

    /// Returns the number of scored tokens in all windows.
    pub fn scored_in_all(&self) -> usize {
        self.count * self.scored
    }

    /// Checks whether every window begins with the BOS token.
    pub fn begin_with_bos(&self) -> bool {
        self.bos.is_some()
    }
}

fn too_short(tokens: usize, least: usize, longest: usize) -> Error {
    let what = format!("the text has {tokens} tokens, and at least {least} are needed");
    let help = match longest {
        0..3 => "use a longer text".to_owned(),
        longest => format!("use a longer text, or a `--window` of at most {longest} tokens"),
    };
    Error::new(ErrorKind::Argument, what).with_help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<Windows>, words: &str) {
        let error = result.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Argument);
        let text = format!("{error} {}", error.help().unwrap_or_default());
        assert!(text.contains(words), "no `{words}` in {text}");
    }

    #[test]
    fn windows_side_by_side_score_their_second_halves() {
        let windows = Windows::adjacent(1030, 512, None, Some(1)).expect("windows");
        assert_eq!((windows.count, windows.scored, windows.left), (2, 255, 6));
        assert_eq!(windows.scored_in_all(), 510);
        let odd = Windows::adjacent(21, 7, None, None).expect("windows");
        // Of 7 tokens the first three are context. Logits from the fourth on predict three.
        assert_eq!((odd.count, odd.scored, odd.left), (3, 3, 0));
        assert_eq!(Windows::adjacent(1030, 512, Some(1), None).expect("windows").left, 518);
        assert_eq!(Windows::adjacent(1030, 512, Some(9), None).expect("windows").count, 2);
        let tokens: Vec<u32> = (100..121).collect();
        assert_eq!(odd.ids(&tokens, 2), (114..121).collect::<Vec<u32>>());
        let begun = Windows::adjacent(21, 7, None, Some(2)).expect("windows");
        assert_eq!(begun.ids(&tokens, 1), [2, 108, 109, 110, 111, 112, 113]);
        assert!(begun.begin_with_bos() && !odd.begin_with_bos());
    }

    #[test]
    fn strided_windows_score_each_token_once() {
        let windows = Windows::strided(20, 8, 4, None).expect("windows");
        assert_eq!((windows.count, windows.scored, windows.left), (3, 4, 4));
        let tokens: Vec<u32> = (0..20).collect();
        let scored: Vec<u32> = (0..3).flat_map(|window| windows.ids(&tokens, window)[4..].to_vec()).collect();
        assert_eq!(scored, (4..16).collect::<Vec<u32>>());
        let windows = Windows::strided(19, 8, 4, Some(2)).expect("windows");
        assert_eq!((windows.count, windows.left), (2, 7));
    }

    #[test]
    fn windows_that_cannot_be_cut_are_refused() {
        refused(Windows::adjacent(511, 512, None, None), "`--window` of at most 511");
        refused(Windows::adjacent(0, 512, None, None), "use a longer text");
        refused(Windows::adjacent(511, 2, None, None), "at least 3");
        refused(Windows::strided(8, 8, 4, None), "at least 9 are needed");
        refused(Windows::strided(80, 8, 8, None), "less than the window");
        refused(Windows::strided(80, 8, 0, None), "at least 1");
    }
}
