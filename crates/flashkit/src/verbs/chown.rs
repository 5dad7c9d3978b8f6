//! `chown`: changes owner and group.

use crate::{
    below::Below,
    source::owner_number,
    target::{Further, Target},
};
use anyhow::{Context, Result};
use f2fs::engine::{Caller, FinalSymlink};

/// Arguments of `chown`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit chown 1000:1000 card.img:/home/user\n  flashkit chown -R :50 card.img:/srv"
)]
pub struct Args {
    /// Owner and group by number: UID, UID:GID or :GID.
    #[arg(value_name = "UID[:GID]", value_parser = owner)]
    owner: (Option<u32>, Option<u32>),
    /// The image and a path inside it; any number of them, in one image. Symbolic links are not followed.
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    targets: Vec<Target>,
    /// Include everything below a directory.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    further: Further,
}

/// Changes owner and group.
pub fn run(args: &Args) -> Result<()> {
    Target::change_all(&args.targets, &args.further, |volume, target| {
        let mut below = Below::new(volume, &target.path, FinalSymlink::NoFollow, args.recursive)?;
        while let Some((ino, _)) = below.next(volume)? {
            volume
                .begin(Caller::ADMIN)
                .change_owner(ino, args.owner.0, args.owner.1)
                .with_context(|| below.shown())?;
        }
        Ok(())
    })
}

/// Either number may be absent, but not both.
fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str| match text {
        "" => Ok(None),
        text => owner_number(text).map(Some).ok_or_else(|| {
            format!(
                "{text:?} is not the number of an owner; user names belong to this machine, not to the volume"
            )
        }),
    };
    match (number(uid)?, number(gid)?) {
        (None, None) => Err("write UID, UID:GID or :GID".into()),
        both => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_valid_numbers_of_users() {
        assert_eq!(owner("0:4294967294"), Ok((Some(0), Some(4294967294))));
        assert_eq!((owner("5"), owner(":7")), (Ok((Some(5), None)), Ok((None, Some(7)))));
        for wrong in ["", ":", "root", "-1", "1:4294967295", "4294967295", "4294967296"] {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }
}
