//! The grid of patches that a picture becomes, and the order in which patches are written.

use shardwright_vocabulary::{Error, Result};

use crate::settings::{expect_finite, wrong_length};
use crate::{PictureSettings, limits};

/// The number of patches that a picture becomes.
///
/// Columns and rows are multiples of the patches along a side of a soft token, so soft tokens are
/// complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Patches from left to right.
    columns: u32,
    /// Patches from top to bottom.
    rows: u32,
    patch: u32,
    pool: u32,
    /// Width and height of the picture that the grid was made for. `None` for patches of an
    /// application.
    of: Option<(u32, u32)>,
}

impl Grid {
    /// Returns the number of patches from left to right.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Returns the number of patches from top to bottom.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of all patches.
    pub fn patches(&self) -> usize {
        self.columns as usize * self.rows as usize
    }

    /// Returns the number of soft tokens: placeholders in a prompt.
    pub fn soft_tokens(&self) -> usize {
        self.patches() / (self.pool as usize * self.pool as usize)
    }

    /// Returns width and height of the resized picture in pixels.
    pub fn pixels(&self) -> (u32, u32) {
        (self.columns * self.patch, self.rows * self.patch)
    }

    #[cfg(feature = "pictures")]
    pub(crate) fn patch(&self) -> u32 {
        self.patch
    }

    /// Refuses a picture with a different size than the grid was made for.
    #[cfg(feature = "pictures")]
    pub(crate) fn expect_of(&self, found: (u32, u32)) -> Result<()> {
        if self.of == Some(found) {
            return Ok(());
        }
        let text = |(width, height): (u32, u32)| format!("{width} by {height} pixels");
        let expected = self.of.map_or_else(|| "an application".to_owned(), text);
        let found = text(found);
        Err(Error::argument(format!("the grid is for a picture of {expected}, but the picture has {found}"))
            .with_help("make the grid from the size of this picture"))
    }

    /// Iterates over the column and row of each patch, in the order in which patches are written.
    /// Soft tokens are ordered from left to right and top to bottom, and so are the patches in each
    /// of them. So a soft token is the mean of consecutive rows.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (pool, across) = (self.pool, self.columns / self.pool);
        let tokens = across * (self.rows / pool);
        (0..tokens).flat_map(move |token| {
            let (left, top) = (token % across * pool, token / across * pool);
            (0..pool * pool).map(move |within| (left + within % pool, top + within / pool))
        })
    }

    /// Returns the index, in the order of [`positions`](Self::positions), of the patch at a column
    /// and row.
    fn index(&self, column: u32, row: u32) -> usize {
        let (pool, across) = (self.pool, self.columns / self.pool);
        let token = row / pool * across + column / pool;
        (token * pool * pool + row % pool * pool + column % pool) as usize
    }

    /// Checks destinations and writes the positions of the picture's patches. Fills the unused rest
    /// with zeros at positions of -1.
    pub(crate) fn prepare(
        &self,
        values: usize,
        patches: &mut [f32],
        columns: &mut [i32],
        rows: &mut [i32],
    ) -> Result<()> {
        let needed = self.patches();
        if columns.len() < needed {
            return Err(wrong_length("the array of columns", &format!("{needed} or more"), columns.len()));
        }
        for (what, width, found) in
            [("the array of rows", 1, rows.len()), ("the array of patches", values, patches.len())]
        {
            if found != columns.len() * width {
                let needed = format!("{width} for each of the {} columns", columns.len());
                return Err(wrong_length(what, &needed, found));
            }
        }
        for (index, (column, row)) in self.positions().enumerate() {
            // Sides are at most 1120 soft tokens of at most 16 patches.
            (columns[index], rows[index]) = (column as i32, row as i32);
        }
        columns[needed..].fill(-1);
        rows[needed..].fill(-1);
        patches[needed * values..].fill(0.0);
        Ok(())
    }
}

impl PictureSettings {
    /// Returns the grid of a picture of `width` by `height` pixels for a budget of soft tokens. It
    /// is the largest grid whose sides are whole soft tokens, that keeps the proportions as nearly
    /// as that allows, and that needs no more than the budget. Small pictures are enlarged. A side
    /// too short for one soft token gets one. The other side then gets as many as the ratio of the
    /// sides.
    ///
    /// # Errors
    ///
    /// * If the budget is neither one of [`Self::BUDGETS`] nor that of the settings.
    /// * If a side is 0.
    /// * If the rule yields no grid within the budget.
    /// * If the picture is about ten thousand times higher than wide.
    pub fn grid(&self, width: u32, height: u32, budget: u32) -> Result<Grid> {
        self.check()?;
        if budget != self.soft_tokens && !Self::BUDGETS.contains(&budget) {
            let mut choices: Vec<String> = Self::BUDGETS.iter().map(u32::to_string).collect();
            if !Self::BUDGETS.contains(&self.soft_tokens) {
                choices.push(self.soft_tokens.to_string());
            }
            let what = format!("a budget of {budget} soft tokens for a picture is not supported");
            return Err(Error::argument(what).with_help(format!("choose one of {}", choices.join(", "))));
        }
        expect_pixels(width, height, "the picture")?;
        let token = u64::from(self.patch) * u64::from(self.pool);
        let pixels = u64::from(budget) * token * token;
        // The order of operations is the library's, since rounding matters at the edges.
        let factor = (pixels as f64 / (f64::from(height) * f64::from(width))).sqrt();
        let tokens = |side: u32| (factor * f64::from(side) / token as f64).floor() as u64;
        let (mut across, mut down) = (tokens(width), tokens(height));
        match (across, down) {
            (0, 0) => {}
            (_, 0) => (across, down) = (u64::from(width / height).min(u64::from(budget)), 1),
            (0, _) => (across, down) = (1, u64::from(height / width).min(u64::from(budget))),
            _ => {}
        }
        if across == 0 || down == 0 || across * down > u64::from(budget) {
            let what = format!("a picture of {width} by {height} pixels does not fit {budget} soft tokens");
            return Err(Error::argument(what).with_help("crop the picture, or allow more soft tokens"));
        }
        let widened = across * token * u64::from(height);
        let max = limits::WIDENED_PIXELS.max(u64::from(width) * u64::from(height));
        if widened > max {
            let what = format!("{width} by {height} pixels become {widened} pixels as wide as patches");
            let what = format!("{what}; at most {max} are computed");
            return Err(Error::invalid(what).with_help("crop the picture"));
        }
        // Each is at most the budget, so at most 1120 times 16.
        let side = |tokens: u64| tokens as u32 * self.pool;
        Ok(Grid {
            columns: side(across),
            rows: side(down),
            patch: self.patch,
            pool: self.pool,
            of: Some((width, height)),
        })
    }

    /// Reorders patches that an application made itself, as in
    /// [`Picture::write_patches`](crate::Picture::write_patches). `values` has
    /// [`patch_values`](Self::patch_values) for each of `positions`. A position is the column and
    /// row of the patch, or -1 and -1 for padding, like `pixel_values` and `image_position_ids` of
    /// Hugging Face's processor. Destinations are the same as in `write_patches`.
    ///
    /// # Errors
    ///
    /// If an array has the wrong length, a value is not finite, or the positions are not a complete
    /// grid of whole soft tokens, at most 1120, each position once.
    pub fn reorder_patches(
        &self,
        values: &[f32],
        positions: &[[i32; 2]],
        patches: &mut [f32],
        columns: &mut [i32],
        rows: &mut [i32],
    ) -> Result<Grid> {
        self.check()?;
        let width = self.patch_values();
        if values.len() != positions.len() * width {
            let needed = format!("{width} for each of the {} positions", positions.len());
            return Err(wrong_length("the array of pixel values", &needed, values.len()));
        }
        expect_finite("the array of pixel values", values)?;
        let grid = self.grid_of(positions)?;
        grid.prepare(width, patches, columns, rows)?;
        for (&[column, row], value) in positions.iter().zip(values.chunks_exact(width)) {
            if let (Ok(column), Ok(row)) = (u32::try_from(column), u32::try_from(row)) {
                let start = grid.index(column, row) * width;
                patches[start..start + width].copy_from_slice(value);
            }
        }
        Ok(grid)
    }

    /// Returns the grid that the positions fill completely.
    fn grid_of(&self, positions: &[[i32; 2]]) -> Result<Grid> {
        let invalid = |index: usize, reason: String| {
            Err(Error::argument(reason)
                .at(format_args!("position {index} of the patches"))
                .with_help("give column and row of each patch once, and -1, -1 for padding"))
        };
        let most = u64::from(*crate::limits::SOFT_TOKENS.end());
        let longest = most * u64::from(self.pool);
        let (mut width, mut height) = (0, 0);
        for (index, &[column, row]) in positions.iter().enumerate() {
            match (u32::try_from(column), u32::try_from(row)) {
                (Ok(column), Ok(row)) if u64::from(column) < longest && u64::from(row) < longest => {
                    (width, height) = (width.max(column + 1), height.max(row + 1));
                }
                _ if [column, row] == [-1, -1] => {}
                _ => return invalid(index, format!("{column}, {row} is not a position of a patch")),
            }
        }
        let grid = Grid { columns: width, rows: height, patch: self.patch, pool: self.pool, of: None };
        if width == 0 || !width.is_multiple_of(self.pool) || !height.is_multiple_of(self.pool) {
            let pool = self.pool;
            return invalid(
                positions.len(),
                format!("{width} by {height} patches are not multiples of {pool}"),
            );
        }
        if grid.soft_tokens() as u64 > most {
            return invalid(
                positions.len(),
                format!("{width} by {height} patches exceed {most} soft tokens"),
            );
        }
        let mut seen = vec![false; grid.patches()];
        for (index, &[column, row]) in positions.iter().enumerate() {
            if let (Ok(column), Ok(row)) = (u32::try_from(column), u32::try_from(row))
                && std::mem::replace(&mut seen[grid.index(column, row)], true)
            {
                return invalid(index, format!("{column}, {row} occurs a second time"));
            }
        }
        match grid.positions().zip(&seen).find(|(_, seen)| !**seen) {
            Some(((column, row), _)) => invalid(positions.len(), format!("{column}, {row} is missing")),
            None => Ok(grid),
        }
    }
}

/// Refuses a picture without pixels.
pub(crate) fn expect_pixels(width: u32, height: u32, origin: &str) -> Result<()> {
    if width > 0 && height > 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("{width} by {height} pixels, expected at least 1 by 1"))
        .at(origin)
        .with_help("give a picture of at least one pixel"))
}
