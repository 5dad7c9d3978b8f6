//! Trees that are made here, in which every byte counts; those of veritysetup are in tests/dm_verity.rs.

use block::{MemoryDevice, Rng};

use super::*;

const BLOCK: usize = 512;

fn parameters(data_blocks: u64, form: HashForm, tree_at: u64) -> Parameters {
    let size = BLOCK as u32;
    let (algorithm, salt) = (Algorithm::Sha256, b"salt".to_vec());
    Parameters { form, algorithm, data_block_bytes: size, hash_block_bytes: size, data_blocks, tree_at, salt }
}

/// Makes the tree of data. Returns its bytes, from the highest level on, and the root hash.
fn tree_of(data: &[u8], parameters: &Parameters) -> (Vec<u8>, Vec<u8>) {
    let (mut below, mut levels) = (data.to_vec(), Vec::new());
    while below.len() > BLOCK {
        let count = (below.len() / BLOCK).div_ceil(parameters.fan_out() as usize);
        let mut level = vec![0; count * BLOCK];
        for (n, block) in (0u64..).zip(below.chunks(BLOCK)) {
            let start = (n / parameters.fan_out()) as usize * BLOCK;
            level[start..start + BLOCK][parameters.place(n)].copy_from_slice(&parameters.hash(block));
        }
        levels.push(level.clone());
        below = level;
    }
    levels.reverse();
    (levels.concat(), parameters.hash(&below))
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(7);
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

/// An image of data and its tree, with the table that describes it.
fn image(data_blocks: usize, form: HashForm) -> (Vec<u8>, Trust) {
    let data = noise(data_blocks * BLOCK);
    let parameters = parameters(data_blocks as u64, form, data.len() as u64);
    let (tree, root) = tree_of(&data, &parameters);
    ([data, tree].concat(), Trust::Table(parameters, root))
}

fn open(bytes: &[u8], trust: &Trust) -> io::Result<Verified> {
    let request = Request { trust: trust.clone(), device: None, offset: None };
    Verified::open(Arc::new(MemoryDevice::from_bytes(bytes)), &request)
}

#[test]
fn data_is_given_as_it_is_at_any_offset() {
    for (blocks, form) in [(1, HashForm::Usual), (16, HashForm::Chromium), (600, HashForm::Usual)] {
        let (bytes, trust) = image(blocks, form);
        let verified = open(&bytes, &trust).unwrap();
        assert_eq!(verified.geometry().size_bytes, (blocks * BLOCK) as u64);
        let mut rng = Rng::new(1);
        for _ in 0..50 {
            let from = rng.below((blocks * BLOCK) as u64) as usize;
            let to = from + rng.below((blocks * BLOCK - from) as u64 + 1) as usize;
            let mut buf = vec![0; to - from];
            verified.read(from as u64, &mut buf).unwrap();
            assert!(buf == bytes[from..to], "{blocks}: {from}..{to}");
        }
        assert!(verified.read((blocks * BLOCK) as u64, &mut [0]).is_err(), "the tree is no part of the data");
        assert!(verified.write(0, &[0]).is_err());
        assert_eq!(verified.damage(&mut |_| {}).unwrap(), Damage::default());
    }
}

#[test]
fn every_changed_byte_is_found_and_only_what_it_proves_is_lost() {
    let (bytes, trust) = image(300, HashForm::Usual);
    let size = 300 * BLOCK;
    let block = |at: usize| (at / BLOCK * BLOCK) as u64..(at / BLOCK * BLOCK + BLOCK) as u64;
    // Levels of 1, 2 and 19 blocks; each byte of a digest counts.
    for (at, lost) in [
        (0, block(0)),
        (size - 1, block(size - 1)),
        (100 * BLOCK + 77, block(100 * BLOCK)),
        (size + 3 * BLOCK, 0..16 * BLOCK as u64),
        (size + BLOCK + 5, 0..256 * BLOCK as u64),
    ] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let verified = open(&changed, &trust).unwrap();
        let damage = verified.damage(&mut |_| {}).unwrap();
        assert_eq!(damage.ranges, std::slice::from_ref(&lost), "byte {at}");
        assert_eq!(damage.blocks * BLOCK as u64, lost.end - lost.start);
        let mut byte = [0];
        let error = verified.read(lost.start, &mut byte).unwrap_err().to_string();
        assert!(error.contains("does not match its hash") && byte == [0], "{error}");
        if lost.end < size as u64 {
            verified.read(lost.end, &mut byte).unwrap();
        }
    }
    let mut changed = bytes.clone();
    changed[size] ^= 1;
    let error = open(&changed, &trust).err().unwrap().to_string();
    assert!(error.contains("does not have this root hash"), "{error}");
}

/// Puts an AVB footer and the metadata behind an image, with one other descriptor before that of the tree.
fn with_avb(bytes: &[u8], trust: &Trust) -> Vec<u8> {
    let Trust::Table(parameters, root) = trust else { panic!("a table") };
    let mut tree = vec![0; 180];
    tree[7] = 1;
    tree[16..20].copy_from_slice(&parameters.form.number().to_be_bytes());
    tree[20..28].copy_from_slice(&(parameters.data_blocks * BLOCK as u64).to_be_bytes());
    tree[28..36].copy_from_slice(&parameters.tree_at.to_be_bytes());
    tree[44..48].copy_from_slice(&parameters.data_block_bytes.to_be_bytes());
    tree[48..52].copy_from_slice(&parameters.hash_block_bytes.to_be_bytes());
    tree[72..78].copy_from_slice(b"sha256");
    for (at, length) in [(104, 4), (108, parameters.salt.len()), (112, root.len())] {
        tree[at..at + 4].copy_from_slice(&(length as u32).to_be_bytes());
    }
    tree.extend(b"data");
    tree.extend([&parameters.salt[..], root].concat());
    tree.resize(tree.len().next_multiple_of(8), 0);
    let follow = tree.len() as u64 - 16;
    tree[8..16].copy_from_slice(&follow.to_be_bytes());
    let mut other = vec![0; 32];
    (other[7], other[15]) = (2, 16);
    let auxiliary = [vec![0; 64], other, tree].concat();
    let mut header = vec![0; 256];
    header[..4].copy_from_slice(b"AVB0");
    for (at, number) in [(12, 320), (20, auxiliary.len()), (96, 64), (104, auxiliary.len() - 64)] {
        header[at..at + 8].copy_from_slice(&(number as u64).to_be_bytes());
    }
    let metadata = [header, vec![0; 320], auxiliary].concat();
    let mut footer = vec![0; 64];
    footer[..8].copy_from_slice(b"AVBf\0\0\0\x01");
    footer[20..28].copy_from_slice(&(bytes.len() as u64).to_be_bytes());
    footer[28..36].copy_from_slice(&(metadata.len() as u64).to_be_bytes());
    [bytes, &metadata, &footer].concat()
}

#[test]
fn an_avb_footer_leads_to_the_tree_and_a_given_root_hash_counts_more_than_its_own() {
    let (bytes, trust) = image(300, HashForm::Usual);
    let Trust::Table(parameters, root) = &trust else { panic!("a table") };
    let whole = with_avb(&bytes, &trust);
    for trusted in [Trust::Stored, Trust::Root(root.clone())] {
        let verified = open(&whole, &trusted).unwrap();
        assert_eq!((verified.parameters(), verified.root()), (parameters, &root[..]));
        assert_eq!(verified.damage(&mut |_| {}).unwrap(), Damage::default());
    }
    // Another image with a right tree of its own.
    let other = noise(301 * BLOCK)[BLOCK..].to_vec();
    let (tree, forged) = tree_of(&other, parameters);
    let forged_trust = Trust::Table(parameters.clone(), forged);
    let forged = with_avb(&[other, tree].concat(), &forged_trust);
    open(&forged, &Trust::Stored).unwrap();
    assert!(open(&forged, &Trust::Root(root.clone())).is_err());
    let error = open(&bytes, &Trust::Stored).err().unwrap().to_string();
    assert!(error.contains("--hash-offset"), "{error}");
    assert!(open(&whole, &Trust::Root(vec![1; 20])).is_err(), "another length");
}

/// Metadata with bytes changed at random gives errors or data, in bounded time and memory.
#[test]
fn damaged_metadata_gives_errors() {
    let (bytes, trust) = image(40, HashForm::Usual);
    let avb = with_avb(&bytes, &trust);
    let mut rng = Rng::new(3);
    for _ in 0..3000 {
        let mut hostile = avb.clone();
        for _ in 0..1 + rng.below(3) {
            let at = hostile.len() - 1 - rng.below((avb.len() - bytes.len()) as u64) as usize;
            hostile[at] = [0, 0xFF, rng.below(256) as u8, 1 << rng.below(8)][rng.below(4) as usize];
        }
        if let Ok(verified) = open(&hostile, &Trust::Stored) {
            let _ = verified.damage(&mut |_| {});
        }
    }
    for length in 0..avb.len() {
        let _ = open(&avb[..length], &Trust::Stored);
    }
}

#[test]
fn root_hashes_are_digits_a_word_or_a_table() {
    assert_eq!("0a0B".parse(), Ok(Trust::Root(vec![10, 11])));
    assert_eq!("stored".parse(), Ok(Trust::Stored));
    let (_, trust) = image(20, HashForm::Chromium);
    assert_eq!(trust.to_string().parse(), Ok(trust));
    for wrong in ["", "abc", "xy", "a b", "1 2 3"] {
        assert!(wrong.parse::<Trust>().is_err(), "{wrong}");
    }
}
