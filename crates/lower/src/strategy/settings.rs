//! Settings of all layers, which describe software as much as a strategy.

use super::{BatchNormStatistics, Strategy};
use partita_space::Bytes;

/// A setting of all layers that a software profile may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Whether halos are exchanged behind computation.
    Overlap,
    /// Whether kernels are fused.
    Fuse,
    /// Statistics of batch norms.
    BatchNorm,
    /// Size of the buckets of gradients.
    Bucket,
}

impl Setting {
    /// All settings.
    pub const ALL: [Setting; 4] = [
        Setting::Overlap,
        Setting::Fuse,
        Setting::BatchNorm,
        Setting::Bucket,
    ];

    /// Its word in the text of a strategy.
    pub fn name(self) -> &'static str {
        match self {
            Setting::Overlap => "overlap",
            Setting::Fuse => "fuse",
            Setting::BatchNorm => "batch_norm",
            Setting::Bucket => "bucket",
        }
    }

    /// The settings that the text of a strategy names, so that they differ from those it leaves open.
    pub fn named_in(text: &str) -> Vec<Setting> {
        let words = text.split([',', ';']);
        let names = words.filter_map(|word| Some(word.split_once('=')?.0.trim()));
        let setting = |name: &str| Setting::ALL.into_iter().find(|one| one.name() == name);
        names.filter_map(setting).collect()
    }
}

impl Strategy {
    /// With the settings of another strategy where its own are the usual ones and not among those `given`.
    #[must_use]
    pub fn with_settings_of(mut self, other: &Self, given: &[Setting]) -> Self {
        let takes = |setting: Setting, is_usual: bool| is_usual && !given.contains(&setting);
        if takes(Setting::Overlap, self.overlap) {
            self.overlap = other.overlap;
        }
        if takes(Setting::Fuse, self.fuse) {
            self.fuse = other.fuse;
        }
        if takes(Setting::Bucket, self.bucket == Bytes(0)) {
            self.bucket = other.bucket;
        }
        let is_usual = self.batch_norm == BatchNormStatistics::default();
        if takes(Setting::BatchNorm, is_usual) {
            return self.with_batch_norm(other.batch_norm);
        }
        self
    }

    /// Whether it has settings alone: no split, no stages, nothing for some layers.
    pub fn is_of_settings(&self) -> bool {
        let usual = Self::single().with_settings_of(self, &[]);
        Self {
            batch_norm: usual.batch_norm,
            ..self.clone()
        } == usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_setting_stays() {
        let software: Strategy = "batch_norm=local,bucket=1TiB,fuse=off".parse().unwrap();
        assert!(software.is_of_settings());
        assert!(
            !"data=2,fuse=off"
                .parse::<Strategy>()
                .unwrap()
                .is_of_settings()
        );
        let text = "data=4,fuse=on,bucket=4MiB; conv1: D=-";
        let given = Setting::named_in(text);
        assert_eq!(given, [Setting::Fuse, Setting::Bucket]);
        let strategy: Strategy = text.parse().unwrap();
        let merged = strategy.with_settings_of(&software, &given);
        let expected = "data=4,batch_norm=local,bucket=4MiB; conv1: D=-";
        assert_eq!(merged.to_string(), expected);
        let one: Strategy = "depth=4".parse().unwrap();
        let merged = one.with_settings_of(&software, &[]);
        // One coordinate of `data` has all samples.
        assert_eq!(merged.to_string(), "depth=4,fuse=off,bucket=1024GiB");
    }
}
