//! The rule for grids, and patches in a different order.

use shardwright_preprocessing::*;
use shardwright_vocabulary::{ErrorKind, Result};

use crate::support::assert_refused;

/// Width, height, budget, columns and rows in soft tokens, computed by the library's own function.
const GRIDS: &[(u32, u32, u32, u32, u32)] = &[
    (1, 1, 70, 8, 8),
    (640, 480, 70, 9, 7),
    (480, 640, 280, 14, 19),
    (4032, 3024, 280, 19, 14),
    (4032, 3024, 1120, 38, 28),
    (3024, 4032, 560, 20, 27),
    (50, 38, 140, 13, 10),
    (1920, 1080, 280, 22, 12),
    (768, 768, 280, 16, 16),
    (10000, 100, 70, 70, 1),
    (100, 10000, 70, 1, 70),
    (10000, 50, 70, 70, 1),
    (1, 60000, 280, 1, 280),
    (60000, 1, 280, 280, 1),
    (7001, 100, 70, 70, 1),
    (6900, 100, 70, 69, 1),
    (99, 7200, 70, 1, 70),
    (65535, 1024, 1120, 267, 4),
    (335, 1, 280, 280, 1),
    (13, 4700, 280, 1, 280),
];

#[test]
fn grids_are_those_of_the_library() {
    let settings = PictureSettings::default();
    for &(width, height, budget, across, down) in GRIDS {
        let grid = settings.grid(width, height, budget).unwrap_or_else(|error| panic!("{error}"));
        let found = (grid.columns(), grid.rows());
        assert_eq!(found, (across * 3, down * 3), "{width} by {height}, {budget}");
        assert_eq!(grid.soft_tokens() as u32, across * down);
        assert_eq!(grid.patches() as u32, across * down * 9);
        assert_eq!(grid.pixels(), (across * 48, down * 48));
    }
}

#[test]
fn every_picture_fits_its_budget() {
    let settings = PictureSettings::default();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut side = || {
            let most = 1 << random.u32(1..17);
            1 + random.u32(..most)
        };
        let (width, height) = (side(), side());
        for budget in PictureSettings::BUDGETS {
            let grid = settings.grid(width, height, budget).unwrap_or_else(|error| panic!("{error}"));
            assert!(grid.soft_tokens() as u32 <= budget && grid.soft_tokens() > 0);
        }
    }
}

#[test]
fn budgets_are_those_of_the_tower_and_of_the_settings() {
    let settings = PictureSettings { soft_tokens: 100, ..PictureSettings::default() };
    assert_eq!(settings.grid(1000, 1000, 100).expect("a grid").soft_tokens(), 100);
    let error = assert_refused(settings.grid(10, 10, 71), ErrorKind::Argument, "a budget of 71 soft tokens");
    assert_eq!(error.help(), Some("choose one of 70, 140, 280, 560, 1120, 100"));
    let settings_of_gemma = PictureSettings::default();
    assert_refused(settings_of_gemma.grid(10, 10, 0), ErrorKind::Argument, "a budget of 0 soft tokens");
    assert_refused(settings.grid(0, 10, 70), ErrorKind::Invalid, "expected at least 1 by 1");
    assert_refused(settings.grid(10, 0, 70), ErrorKind::Invalid, "expected at least 1 by 1");
    assert_eq!((settings.patches(280), settings.patch_values()), (2520, 768));
}

/// With one soft token, a square fits exactly by size, and rounding may leave it none.
#[test]
fn what_rounds_to_nothing_is_refused_as_in_the_library() {
    let settings = PictureSettings { soft_tokens: 1, ..PictureSettings::default() };
    let side =
        (1..1000).find(|side| settings.grid(*side, *side, 1).is_err()).expect("a side that rounds down");
    assert_refused(settings.grid(side, side, 1), ErrorKind::Argument, "does not fit 1 soft tokens");
    assert_refused(settings.grid(1, 1 << 26, 280), ErrorKind::Invalid, "1 by 67108864 pixels become ");
    assert!(settings.grid(1 << 26, 1, 280).is_ok() && settings.grid(8192, 8192, 280).is_ok());
}

#[test]
fn positions_go_through_soft_tokens_one_by_one() {
    let settings = PictureSettings { pool: 2, ..PictureSettings::default() };
    let grid = PictureSettings { soft_tokens: 2, ..settings }.grid(200, 100, 2).expect("a grid");
    let positions: Vec<_> = grid.positions().collect();
    assert_eq!(positions, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]);
}

/// The grid, patches, columns and rows.
type Reordered = (Grid, Vec<f32>, Vec<i32>, Vec<i32>);

/// A grid with one pixel per patch, in row-major order, with padding.
struct Made {
    settings: PictureSettings,
    values: Vec<f32>,
    positions: Vec<[i32; 2]>,
}

impl Made {
    fn new(columns: i32, rows: i32, padding: usize) -> Self {
        let settings = PictureSettings { patch: 1, pool: 2, soft_tokens: 280 };
        let mut positions: Vec<[i32; 2]> =
            (0..rows).flat_map(|row| (0..columns).map(move |column| [column, row])).collect();
        positions.extend(std::iter::repeat_n([-1, -1], padding));
        let values = positions.iter().flat_map(|[column, row]| [*column as f32, *row as f32, 0.5]).collect();
        Made { settings, values, positions }
    }

    fn reorder(&self, room: usize) -> Result<Reordered> {
        let (mut patches, mut columns, mut rows) = (vec![9.0; room * 3], vec![9; room], vec![9; room]);
        let settings = &self.settings;
        settings
            .reorder_patches(&self.values, &self.positions, &mut patches, &mut columns, &mut rows)
            .map(|grid| (grid, patches, columns, rows))
    }
}

#[test]
fn patches_of_an_application_are_put_in_order() {
    let (grid, patches, columns, rows) = Made::new(4, 6, 5).reorder(30).expect("reordered");
    assert_eq!((grid.columns(), grid.rows(), grid.soft_tokens()), (4, 6, 6));
    for (index, (column, row)) in grid.positions().enumerate() {
        assert_eq!((columns[index], rows[index]), (column as i32, row as i32));
        assert_eq!(patches[index * 3..][..3], [column as f32, row as f32, 0.5]);
    }
    assert!(patches[24 * 3..].iter().all(|value| *value == 0.0));
    assert!(columns[24..].iter().chain(&rows[24..]).all(|position| *position == -1));
    // In any order, with padding in between.
    let mut made = Made::new(4, 6, 5);
    made.positions.reverse();
    made.values = made.positions.iter().flat_map(|[x, y]| [*x as f32, *y as f32, 0.5]).collect();
    assert_eq!(made.reorder(30).expect("reordered").1, patches);
}

#[test]
fn positions_that_are_no_grid_are_refused() {
    let wrong = |change: fn(&mut Made)| {
        let mut made = Made::new(4, 4, 2);
        change(&mut made);
        made.reorder(40)
    };
    assert_refused(
        wrong(|made| made.positions[5] = [0, 0]),
        ErrorKind::Argument,
        "position 5 of the patches: ",
    );
    assert_refused(wrong(|made| made.positions[5] = [-1, -1]), ErrorKind::Argument, "of the patches: ");
    assert_refused(
        wrong(|made| made.positions[5] = [-1, 0]),
        ErrorKind::Argument,
        "position 5 of the patches: ",
    );
    assert_refused(
        wrong(|made| made.positions[5] = [i32::MAX, 0]),
        ErrorKind::Argument,
        "position 5 of the patches: ",
    );
    assert_refused(wrong(|made| made.positions[5] = [2000, 2000]), ErrorKind::Argument, "of the patches: ");
    assert_refused(wrong(|made| made.positions[5] = [7, 7]), ErrorKind::Argument, "of the patches: ");
    assert_refused(wrong(|made| made.positions.fill([-1, -1])), ErrorKind::Argument, "of the patches: ");
    assert_refused(wrong(|made| made.values[7] = f32::NAN), ErrorKind::Argument, "the value at index 7 is ");
    assert_refused(wrong(|made| made.values.truncate(20)), ErrorKind::Argument, " values; expected ");
    assert_refused(Made::new(3, 4, 0).reorder(40), ErrorKind::Argument, "of the patches: ");
    assert_refused(Made::new(4, 4, 0).reorder(15), ErrorKind::Argument, " values; expected ");
    let mut none = Made::new(4, 4, 0);
    (none.positions, none.values) = (Vec::new(), Vec::new());
    assert_refused(none.reorder(4), ErrorKind::Argument, "of the patches: ");
}
