//! Files of sounds, samples, other rates, and hostile ones.

use std::f64::consts::TAU;
use std::io::Cursor;

use hound::{SampleFormat, WavSpec, WavWriter};
use shardwright_preprocessing::*;
use shardwright_vocabulary::ErrorKind;

use crate::support::{assert_refused, file};

fn settings() -> SoundSettings {
    SoundSettings::default()
}

fn sine(rate: u32, seconds: f64, hertz: f64) -> Vec<f32> {
    let count = (f64::from(rate) * seconds) as usize;
    (0..count).map(|at| (0.5 * (TAU * hertz * at as f64 / f64::from(rate)).sin()) as f32).collect()
}

/// Returns a WAV file of integers with that many bits, or of floats for `None`.
fn wav(rate: u32, channels: u16, bits: Option<u16>, samples: &[f32]) -> Vec<u8> {
    let spec = WavSpec {
        channels,
        sample_rate: rate,
        bits_per_sample: bits.unwrap_or(32),
        sample_format: if bits.is_some() { SampleFormat::Int } else { SampleFormat::Float },
    };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec).expect("a writer");
    for sample in samples {
        match bits {
            Some(bits) => {
                let scale = f64::from(1u32 << (bits - 1));
                let value = (f64::from(*sample) * scale).round().clamp(-scale, scale - 1.0);
                writer.write_sample(value as i32).expect("written");
            }
            None => writer.write_sample(*sample).expect("written"),
        }
    }
    writer.finalize().expect("finished");
    bytes.into_inner()
}

/// Returns the amplitude of a frequency in the middle of samples.
fn amplitude(samples: &[f32], rate: f64, hertz: f64) -> f64 {
    // Whole periods of all frequencies used here.
    let length = (rate * 0.1) as usize;
    let start = (samples.len() - length) / 2;
    let (mut real, mut imaginary) = (0.0, 0.0);
    for (at, sample) in samples[start..start + length].iter().enumerate() {
        let angle = TAU * hertz * at as f64 / rate;
        real += f64::from(*sample) * angle.cos();
        imaginary += f64::from(*sample) * angle.sin();
    }
    2.0 * real.hypot(imaginary) / length as f64
}

#[test]
fn wav_files_of_every_width_are_read() {
    let samples = sine(16_000, 0.05, 440.0);
    for bits in [Some(8), Some(16), Some(24), Some(32), None] {
        let sound = Sound::from_bytes(&wav(16_000, 1, bits, &samples), &settings()).expect("a sound");
        assert_eq!(sound.samples().len(), samples.len());
        let step = bits.map_or(0.0, |bits| 0.5f32.powi(i32::from(bits)));
        for (ours, theirs) in sound.samples().iter().zip(&samples) {
            assert!((ours - theirs).abs() <= step + 1e-7, "{bits:?}: {ours} instead of {theirs}");
        }
    }
    let extremes = wav(16_000, 1, Some(16), &[[1.0, -1.0]; 200].concat());
    let sound = Sound::from_bytes(&extremes, &settings()).expect("a sound");
    assert_eq!(sound.samples()[..2], [32767.0 / 32768.0, -1.0]);
}

#[test]
fn channels_are_mixed_to_their_mean() {
    let (left, right) = (sine(16_000, 0.05, 440.0), sine(16_000, 0.05, 880.0));
    let both: Vec<f32> = left.iter().zip(&right).flat_map(|(left, right)| [*left, *right]).collect();
    let sound = Sound::from_bytes(&wav(16_000, 2, None, &both), &settings()).expect("a sound");
    for (at, mixed) in sound.samples().iter().enumerate() {
        assert!((mixed - (left[at] + right[at]) / 2.0).abs() < 1e-7);
    }
    let given = Sound::from_interleaved(16_000, 2, &both, &settings()).expect("a sound");
    assert_eq!((&given, given.content_hash()), (&sound, sound.content_hash()));
    assert_eq!(format!("{given:?}"), "Sound { samples: 800, rate: 16000 }");
    for channels in [0, 3, 65] {
        assert_refused(
            Sound::from_interleaved(16_000, channels, &both, &settings()),
            ErrorKind::Argument,
            " channels",
        );
    }
}

#[test]
fn flac_files_are_read_exactly() {
    let sound = Sound::from_bytes(&file("sine_16k.flac"), &settings()).expect("a sound");
    let expected = sine(16_000, 0.1, 440.0);
    assert_eq!(sound.samples().len(), expected.len());
    for (ours, theirs) in sound.samples().iter().zip(&expected) {
        assert!((ours - theirs).abs() <= 1.0 / 32768.0, "{ours} instead of {theirs}");
    }
    let stereo = Sound::from_bytes(&file("stereo_48k.flac"), &settings()).expect("a sound");
    assert_eq!(stereo.samples().len(), 800);
}

#[test]
fn other_rates_keep_frequency_loudness_and_duration() {
    for rate in [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 44_101] {
        let samples = sine(rate, 0.5, 440.0);
        let sound = Sound::from_samples(rate, &samples, &settings()).expect("a sound");
        let expected = (samples.len() * 16_000).div_ceil(rate as usize);
        assert_eq!(sound.samples().len(), expected, "{rate}");
        let kept = amplitude(sound.samples(), 16_000.0, 440.0);
        assert!((kept - 0.5).abs() < 1e-3, "{rate}: {kept}");
        for other in [220.0, 450.0, 880.0, 4000.0] {
            let made = amplitude(sound.samples(), 16_000.0, other);
            assert!(made < 1e-3, "{rate}: {made} at {other} Hz");
        }
        // Aligned in time, except near the edges.
        for at in expected / 4..expected * 3 / 4 {
            let wanted = 0.5 * (TAU * 440.0 * at as f64 / 16_000.0).sin();
            let found = f64::from(sound.samples()[at]);
            assert!((found - wanted).abs() < 2e-3, "{rate}, {at}: {found} instead of {wanted}");
        }
        let again = Sound::from_samples(rate, &samples, &settings()).expect("a sound");
        assert_eq!(again.content_hash(), sound.content_hash(), "the same on every run");
    }
    // Frequencies too high for the lower rate are removed, not folded.
    let high = Sound::from_samples(48_000, &sine(48_000, 0.5, 12_000.0), &settings()).expect("a sound");
    assert!(amplitude(high.samples(), 16_000.0, 4_000.0) < 1e-3);
    for rate in [0, 3_999, 384_001, u32::MAX] {
        assert_refused(
            Sound::from_samples(rate, &[0.0; 9999], &settings()),
            ErrorKind::Unsupported,
            "samples per second; ",
        );
    }
}

#[test]
fn too_short_and_too_long_are_told() {
    assert_refused(Sound::from_samples(16_000, &[], &settings()), ErrorKind::Invalid, ": no samples");
    assert_refused(
        Sound::from_samples(16_000, &[0.0; 160], &settings()),
        ErrorKind::Invalid,
        "one frame needs 161",
    );
    let shortest = Sound::from_samples(16_000, &[0.0; 161], &settings()).expect("a sound");
    assert_eq!((shortest.valid_frames(), shortest.soft_tokens()), (1, 1));
    let longest = Sound::from_samples(16_000, &vec![0.0; 480_000], &settings()).expect("a sound");
    assert_eq!((longest.frames(), longest.soft_tokens()), (2999, 750));
    let error = assert_refused(
        Sound::from_samples(16_000, &vec![0.0; 480_001], &settings()),
        ErrorKind::Invalid,
        "longer than ",
    );
    assert!(error.to_string().contains("longer than 30 s"), "{error}");
    let resampled = Sound::from_samples(44_100, &vec![0.0; 44_100 * 30], &settings()).expect("a sound");
    assert_eq!(resampled.samples().len(), 480_000);
    assert_refused(
        Sound::from_samples(44_100, &vec![0.0; 44_100 * 30 + 1], &settings()),
        ErrorKind::Invalid,
        "longer than ",
    );
    let empty = wav(16_000, 1, Some(16), &[]);
    assert_refused(Sound::from_bytes(&empty, &settings()), ErrorKind::Invalid, ": no samples");
}

#[test]
fn samples_that_are_no_numbers_are_refused_with_their_index() {
    let mut samples = sine(16_000, 0.05, 440.0);
    samples[123] = f32::NAN;
    let error = assert_refused(
        Sound::from_samples(16_000, &samples, &settings()),
        ErrorKind::Argument,
        "the value at index 123 is ",
    );
    assert_eq!(error.kind(), ErrorKind::Argument);
    samples[123] = f32::INFINITY;
    let whole = wav(16_000, 1, None, &samples);
    assert_refused(Sound::from_bytes(&whole, &settings()), ErrorKind::Argument, "the value at index");
    // A file with such a sample is damaged, while an application's samples are its argument.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("infinite.wav");
    std::fs::write(&path, whole).expect("written");
    let error = assert_refused(Sound::from_path(&path, &settings()), ErrorKind::Invalid, ": damaged: ");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("infinite.wav") && error.to_string().contains("inf"), "{error}");
    // Large samples are valid, and their features are finite too.
    let loud = Sound::from_interleaved(16_000, 2, &[f32::MAX; 800], &settings()).expect("a sound");
    let mut frames = vec![0.0; loud.frames() * 128];
    let valid = loud.write_frames(&mut frames).expect("written");
    assert_eq!(settings().check_frames(&frames[..valid * 128]).expect("finite"), valid);
}

#[test]
fn destinations_are_checked_and_filled() {
    let sound = Sound::from_samples(16_000, &sine(16_000, 0.1, 440.0), &settings()).expect("a sound");
    assert_eq!((sound.frames(), sound.valid_frames(), sound.settings()), (10, 9, &settings()));
    let mut frames = vec![9.0; 12 * 128];
    assert_eq!(sound.write_frames(&mut frames).expect("written"), 9);
    assert!(frames[9 * 128..].iter().all(|value| *value == 0.0));
    let mut exact = vec![9.0; 9 * 128];
    sound.write_frames(&mut exact).expect("written");
    assert_eq!(exact, frames[..9 * 128]);
    assert_refused(sound.write_frames(&mut frames[..8 * 128]), ErrorKind::Argument, " values; expected ");
    assert_refused(sound.write_frames(&mut frames[..9 * 128 + 1]), ErrorKind::Argument, " values; expected ");
}

#[test]
fn silence_is_the_floor_and_a_tone_its_bin() {
    let silent = Sound::from_samples(16_000, &[0.0; 1600], &settings()).expect("a sound");
    let mut frames = vec![9.0; silent.frames() * 128];
    let valid = silent.write_frames(&mut frames).expect("written");
    assert!(frames[..valid * 128].iter().all(|value| (value - 1e-3f32.ln()).abs() < 1e-6));
    let tone = Sound::from_samples(16_000, &sine(16_000, 0.1, 1000.0), &settings()).expect("a sound");
    tone.write_frames(&mut frames).expect("written");
    let loudest = (0..128).max_by(|a, b| frames[4 * 128 + a].total_cmp(&frames[4 * 128 + b])).expect("a bin");
    // 1000 Hz are 999.99 mel, of 2840 for 129 steps.
    assert_eq!(loudest, 44);
}

#[test]
fn what_is_not_decoded_is_named() {
    for (bytes, what) in [
        (b"%PDF-1.7".to_vec(), "a PDF document"),
        (b"words".to_vec(), "text"),
        (vec![], "empty"),
        (file("smooth.jpg"), "a JPEG picture"),
        (b"\0\0\0\x20ftypM4A \0\0".to_vec(), "an M4A sound"),
    ] {
        let error = assert_refused(
            Sound::from_bytes(&bytes, &settings()),
            ErrorKind::Unsupported,
            ", expected one of ",
        );
        assert!(error.message().starts_with(&format!("{what}, expected one of WAV, FLAC")), "{error}");
    }
    // 64-bit floats.
    let mut wide = wav(16_000, 1, None, &[0.5; 800]);
    (wide[34], wide[32]) = (64, 8);
    let error = crate::support::refused(Sound::from_bytes(&wide, &settings()));
    let faults = [(ErrorKind::Unsupported, "unsupported: "), (ErrorKind::Invalid, "damaged: ")];
    let is_known =
        |(kind, words): (ErrorKind, &str)| error.kind() == kind && error.message().starts_with(words);
    assert!(faults.into_iter().any(is_known), "{error:?}");
    // A coding other than plain numbers.
    let mut coded = wav(16_000, 1, Some(16), &[0.5; 800]);
    coded[20] = 0x11;
    assert_refused(Sound::from_bytes(&coded, &settings()), ErrorKind::Unsupported, "unsupported: ");
    #[cfg(not(feature = "mp3-ogg"))]
    for (name, what) in [("sine_44k.mp3", "an MP3 sound"), ("sine_44k.ogg", "an Ogg sound")] {
        let words = format!(": {what}, expected one of ");
        assert_refused(Sound::from_bytes(&file(name), &settings()), ErrorKind::Unsupported, &words);
    }
}

#[cfg(feature = "mp3-ogg")]
#[test]
fn mp3_and_ogg_are_read_with_their_feature() {
    for name in ["sine_44k.mp3", "sine_44k.ogg"] {
        let sound = Sound::from_bytes(&file(name), &settings()).expect("a sound");
        let length = sound.samples().len();
        assert!((4700..5900).contains(&length), "{name}: {length}");
        let kept = amplitude(sound.samples(), 16_000.0, 440.0);
        assert!((kept - 0.5).abs() < 0.03, "{name}: {kept}");
        let whole = file(name);
        for length in (0..whole.len()).step_by(61) {
            let _ = Sound::from_bytes(&whole[..length], &settings());
        }
    }
    assert_refused(
        Sound::from_bytes(&file("sine_48k.opus"), &settings()),
        ErrorKind::Unsupported,
        "unsupported: ",
    );
}

#[test]
fn the_content_decides_and_errors_name_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("voice.txt");
    std::fs::write(&path, wav(16_000, 1, Some(16), &[0.25; 800])).expect("written");
    assert_eq!(Sound::from_path(&path, &settings()).expect("a sound").samples(), [0.25; 800]);
    std::fs::write(&path, wav(16_000, 1, Some(16), &[0.25; 8])).expect("written");
    let error = assert_refused(
        Sound::from_path(&path, &settings()),
        ErrorKind::Invalid,
        ": 8 samples at 16000 Hz; one frame needs ",
    );
    assert!(error.to_string().contains("voice.txt"), "{error}");
    assert_refused(
        Sound::from_path(folder.path().join("absent.wav"), &settings()),
        ErrorKind::Missing,
        "No such file",
    );
    std::fs::File::create(&path)
        .and_then(|file| file.set_len(limits::SOUND_FILE_BYTES + 1))
        .expect("a long file");
    assert_refused(Sound::from_path(&path, &settings()), ErrorKind::Invalid, "more than 67108864 bytes");
    let wrong = SoundSettings { bins: 0, ..settings() };
    assert_refused(Sound::from_samples(16_000, &[0.0; 800], &wrong), ErrorKind::Argument, "` should be ");
}

#[test]
fn claims_of_headers_allocate_nothing() {
    let mut wav = wav(16_000, 1, Some(16), &[0.5; 800]);
    let data = wav.windows(4).position(|four| four == b"data").expect("the samples");
    wav[data + 4..data + 8].copy_from_slice(&2_000_000_000u32.to_le_bytes());
    assert_refused(Sound::from_bytes(&wav, &settings()), ErrorKind::Invalid, "longer than ");
    wav[data + 4..data + 8].copy_from_slice(&2_000u32.to_le_bytes());
    assert_refused(Sound::from_bytes(&wav, &settings()), ErrorKind::Invalid, ": truncated: ");

    // The number of samples is the last of 36 bits after rate, channels and width.
    let mut flac = file("sine_16k.flac");
    let set = |flac: &mut [u8], count: u64| {
        flac[21] = flac[21] & 0xf0 | (count >> 32) as u8;
        flac[22..26].copy_from_slice(&(count as u32).to_be_bytes());
    };
    set(&mut flac, (1 << 36) - 1);
    assert_refused(Sound::from_bytes(&flac, &settings()), ErrorKind::Invalid, "longer than ");
    set(&mut flac, 1601);
    assert_refused(Sound::from_bytes(&flac, &settings()), ErrorKind::Invalid, ": truncated: ");
    set(&mut flac, 0);
    assert_eq!(Sound::from_bytes(&flac, &settings()).expect("a sound").samples().len(), 1600);
    // The decoded length is limited too.
    let short = SoundSettings { longest: 1000, ..settings() };
    assert_refused(Sound::from_bytes(&flac, &short), ErrorKind::Invalid, "longer than ");
}

/// Returns a WAV file with these sizes, and with chunks of odd length before and after the samples.
fn piped(riff: u32, data: u32, samples: &[i16], tail: &[u8]) -> Vec<u8> {
    let mut bytes =
        [b"RIFF", &riff.to_le_bytes()[..], b"WAVE", b"LIST", &3u32.to_le_bytes(), b"odd\0"].concat();
    let format = [1, 0, 1, 0, 0x80, 0x3e, 0, 0, 0, 0x7d, 0, 0, 2, 0, 16, 0];
    bytes.extend([b"fmt ", &16u32.to_le_bytes()[..], &format, b"data", &data.to_le_bytes()].concat());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes.extend(tail);
    bytes
}

#[test]
fn sizes_that_were_not_known_are_those_of_the_file() {
    let samples: Vec<i16> = (0..800).collect();
    let expected: Vec<f32> = samples.iter().map(|sample| f32::from(*sample) / 32768.0).collect();
    // Sizes of ffmpeg, arecord and sox, and of programs that leave zeros or the sizes of the
    // header.
    for (riff, data) in [
        (u32::MAX, u32::MAX),
        (0x7fff_ff24, 0x7fff_ff00),
        (0x7fff_f024, 0x7fff_f000),
        (0x7fff_ffff, 0x7fff_ffff),
        (0, 0),
        (48, 0),
        (1648, 0),
        (0, u32::MAX),
        (0, 1600),
        (u32::MAX, 1600),
    ] {
        let sound = Sound::from_bytes(&piped(riff, data, &samples, b""), &settings()).expect("a sound");
        assert_eq!(sound.samples(), expected, "{riff:#x}, {data:#x}");
    }
    // Half a sample at the end of a pipe is dropped.
    let sound = Sound::from_bytes(&piped(u32::MAX, u32::MAX, &samples, &[7]), &settings()).expect("a sound");
    assert_eq!(sound.samples(), expected);
    // A size of zero within the file is valid, and so is a size before other chunks.
    let list = [b"LIST", &4u32.to_le_bytes()[..], b"INFO"].concat();
    // If only the size of the file is known, the samples end with the file.
    let sound = Sound::from_bytes(&piped(1648, 0, &samples, &list), &settings()).expect("a sound");
    assert_eq!(sound.samples(), expected);
    let empty = piped(60, 0, &[], &list);
    assert_refused(Sound::from_bytes(&empty, &settings()), ErrorKind::Invalid, ": no samples");
    let sound = Sound::from_bytes(&piped(1660, 1600, &samples, &list), &settings()).expect("a sound");
    assert_eq!(sound.samples(), expected);
    // A pipe without an end is also limited to the longest clip.
    let short = SoundSettings { longest: 799, ..settings() };
    assert_refused(
        Sound::from_bytes(&piped(u32::MAX, u32::MAX, &samples, b""), &short),
        ErrorKind::Invalid,
        "longer than ",
    );
}

#[test]
fn a_second_format_and_second_samples_are_refused() {
    let samples: Vec<i16> = (0..800).collect();
    let more = |name: &[u8; 4]| [name, &16u32.to_le_bytes()[..], &[0; 16]].concat();
    let list = more(b"LIST");
    for name in [b"data", b"fmt ", b"RIFF"] {
        let tail = [list.clone(), more(name)].concat();
        let refused = Sound::from_bytes(&piped(1700, 1600, &samples, &tail), &settings());
        let words = format!("a second chunk `{}`", String::from_utf8_lossy(name));
        assert_refused(refused, ErrorKind::Unsupported, &words);
        // The size of the samples is unknown, and the file states its own.
        let refused = Sound::from_bytes(&piped(1648, 0, &samples, &tail), &settings());
        assert_refused(refused, ErrorKind::Unsupported, &words);
    }
    // A second format before the samples.
    let whole = piped(1648, 1600, &samples, b"");
    let twice = [&whole[..48], &whole[24..]].concat();
    let refused = Sound::from_bytes(&twice, &settings());
    assert_refused(refused, ErrorKind::Unsupported, "a second chunk `fmt `");
    // Other chunks may follow.
    let sound = Sound::from_bytes(&piped(1660, 1600, &samples, &list), &settings()).expect("a sound");
    assert_eq!(sound.samples().len(), 800);
}

#[test]
fn wav_files_that_state_nonsense_are_refused() {
    let whole = piped(1648, 1600, &[1; 800], b"");
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Sound::from_bytes(&file, &settings())
    };
    assert_refused(changed(0, b"RF64"), ErrorKind::Unsupported, "unsupported: ");
    assert_refused(changed(24, b"fmx "), ErrorKind::Invalid, ": damaged: ");
    assert_refused(changed(28, &2u32.to_le_bytes()), ErrorKind::Invalid, ": damaged: ");
    assert_refused(changed(28, &u32::MAX.to_le_bytes()), ErrorKind::Invalid, ": truncated: ");
    assert_refused(changed(16, &u32::MAX.to_le_bytes()), ErrorKind::Invalid, ": truncated: ");
    assert_refused(changed(32, &[6, 0]), ErrorKind::Unsupported, "unsupported: a WAV sound of coding 0x0006");
    for (bits, coding) in [(12, 1), (64, 1), (0, 1), (16, 3), (64, 3)] {
        let mut file = whole.clone();
        (file[32], file[46]) = (coding, bits);
        let words = format!("unsupported: a WAV sound of {bits} bits");
        assert_refused(Sound::from_bytes(&file, &settings()), ErrorKind::Unsupported, &words);
    }
    assert_refused(changed(34, &[0, 0]), ErrorKind::Argument, " channels");
    assert_refused(changed(36, &[0; 4]), ErrorKind::Unsupported, "samples per second; ");
    assert_refused(changed(52, &1599u32.to_le_bytes()), ErrorKind::Invalid, ": damaged: ");
}

#[test]
fn broken_files_end_in_errors() {
    for whole in [wav(16_000, 2, Some(24), &[0.5; 800]), file("sine_16k.flac"), file("stereo_48k.flac")] {
        for length in 0..whole.len() {
            let error = crate::support::refused(Sound::from_bytes(&whole[..length], &settings()));
            assert!(!error.message().starts_with("longer than "), "{length}: {error}");
        }
    }
    let mut damaged = file("sine_16k.flac");
    // The last byte is part of the checksum.
    let last = damaged.len() - 1;
    damaged[last] ^= 0xff;
    assert_refused(Sound::from_bytes(&damaged, &settings()), ErrorKind::Invalid, ": damaged: ");
}
