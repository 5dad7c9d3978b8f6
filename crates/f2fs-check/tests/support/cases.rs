// The kinds of damage, one for each kind of finding. A test file includes this and defines `damage!`, which gets for
// each case the name of its test, the kinds of its findings, and the damage.

const ROOT: Ino = Ino(3);

fn le(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Byte offset of the first address in an inode with all extra attributes.
const ADDRS: usize = 396;
/// Byte offset of the nids in an inode.
const NIDS: usize = 4052;
/// Byte offsets in a node's footer.
const FOOTER: usize = 4072;

damage! {
    a_sound_volume_has_no_finding => []: |d| { let _ = &d; }

    // Superblocks.
    a_superblock_without_its_magic => ["superblock-magic"]: |d| { d.put(BlockAddr(0), 1024, &[0; 4]); }
    a_second_superblock_without_its_magic => ["superblock-magic"]: |d| { d.put(BlockAddr(1), 1024, &[1; 4]); }
    a_superblock_with_a_wrong_checksum => ["superblock-checksum"]: |d| { d.put(BlockAddr(0), 1024 + 2800, &[7]); }
    a_superblock_with_impossible_numbers => ["superblock-invalid"]: |d| {
        put_superblock(&d, 0, 24, &le(0));
    }
    superblocks_that_differ => ["superblocks-differ"]: |d| { put_superblock(&d, 1, 124, b"x"); }
    an_unknown_feature => ["feature-unknown"]: |d| {
        let feature = u32::from_le_bytes(d.block(BlockAddr(0))[1024 + 2180..1024 + 2184].try_into().unwrap());
        for copy in [0, 1] {
            put_superblock(&d, copy, 2180, &le(feature | 1 << 30));
        }
    }
    errors_that_linux_recorded => ["errors-recorded"]: |d| {
        for copy in [0, 1] {
            put_superblock(&d, copy, 2794, &[4]);
        }
    }

    // Checkpoint packs.
    a_pack_with_a_wrong_checksum => ["pack-invalid"]: |d| {
        // Nothing tells its version, either.
        let other = 1 - d.checkpoint().0;
        d.put(d.pack(other), 0, &[0xEE; BLOCK]);
    }
    error_flags_of_a_checkpoint => ["checkpoint-error"]: |d| {
        let flags = d.checkpoint().1.flags.0;
        d.put_checkpoint(132, &le(flags | 0x18));
    }
    an_interrupted_resize => ["resize-unfinished"]: |d| {
        let flags = d.checkpoint().1.flags.0;
        d.put_checkpoint(132, &le(flags | 0x4000));
    }
    a_wrong_count_of_blocks => ["count-blocks"]: |d| {
        let blocks = d.checkpoint().1.valid_blocks + 1;
        d.put_checkpoint(16, &blocks.to_le_bytes());
    }
    a_wrong_count_of_nodes => ["count-nodes"]: |d| {
        d.put_checkpoint(144, &le(d.checkpoint().1.valid_nodes + 1));
    }
    a_wrong_count_of_inodes => ["count-inodes"]: |d| {
        d.put_checkpoint(148, &le(d.checkpoint().1.valid_inodes - 1));
    }
    a_wrong_count_of_free_segments => ["count-free"]: |d| {
        d.put_checkpoint(32, &le(d.checkpoint().1.free_segments - 1));
    }
    a_log_at_a_block_in_use => ["log-position"]: |d| {
        let offset = d.checkpoint().1.logs[4].offset;
        d.put_checkpoint(68 + 2, &(offset - 1).to_le_bytes());
    }
    a_nat_journal_that_is_too_long => ["nat-journal"]: |d| {
        let (addr, at) = d.journals()[0];
        assert_eq!(d.block(addr)[at..at + 2], [0; 2], "the test needs an empty journal");
        d.put(addr, at, &99u16.to_le_bytes());
    }
    a_wrong_count_below_the_sit_journal => ["sit-count"]: |d| { put_below_journal(&d, 0, 1); }
    an_impossible_type_below_the_sit_journal => ["sit-type"]: |d| { put_below_journal(&d, 1, 0x80); }
    a_sit_journal_for_no_segment => ["sit-journal"]: |d| {
        let (addr, at) = d.journals()[1];
        let count = u16::from_le_bytes(d.block(addr)[at..at + 2].try_into().unwrap());
        assert!(count < 6, "the test needs room in the journal");
        d.put(addr, at, &(count + 1).to_le_bytes());
        d.put(addr, at + 2 + usize::from(count) * 78, &le(1 << 24));
    }

    an_impossible_checkpoint_falls_back_to_the_other_pack => ["checkpoint-invalid"]: |d| {
        // Both packs are alike, so that only the first one's numbers differ.
        let (pack, checkpoint) = d.checkpoint();
        let (from, to) = (d.pack(pack), d.pack(1 - pack));
        let blocks: Vec<Vec<u8>> =
            (0..checkpoint.pack_blocks).map(|n| d.block(BlockAddr(from.0 + n))).collect();
        for (n, block) in (0..).zip(&blocks) {
            d.put(BlockAddr(to.0 + n), 0, block);
        }
        d.put_checkpoint(0, &(checkpoint.version.0 + 1).to_le_bytes());
        d.put_checkpoint(156, &le(1));
    }
    an_orphan_that_has_a_name => ["orphan-named"]: |d| { put_orphan(&d, d.ino("/plain").0, 1); }
    an_orphan_with_links => ["dentry-name", "orphan-links"]: |d| {
        put_orphan(&d, d.ino("/few/other").0, 1);
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "other"), 0, &[0; 11]);
    }
    the_root_in_the_orphan_list => ["orphan-links"]: |d| { put_orphan(&d, ROOT.0, 1); }
    a_quota_file_in_the_orphan_list => ["orphan-links"]: |d| {
        put_orphan(&d, d.volume().superblock().quota_inos[0].0, 1);
    }
    an_orphan_that_is_not_in_use => ["orphan-inode"]: |d| { put_orphan(&d, 60_000, 1); }
    an_orphan_block_with_too_many_entries => ["orphan-block"]: |d| { put_orphan(&d, 60_000, 1021); }
    quota_inodes_without_the_feature => ["inode-unreached", "quota-feature"]: |d| {
        let feature = d.volume().superblock().features.0 & !0x90;
        for copy in [0, 1] {
            put_superblock(&d, copy, 2180, &le(feature));
        }
    }
    a_quota_inode_that_is_not_in_use => ["quota-inode", "quota-usage"]: |d| {
        for copy in [0, 1] {
            put_superblock(&d, copy, 2745 + 8, &le(60_000));
        }
        // The old quota inode has no name now; it is an orphan, which counts in the usage.
        d.put_inode(d.volume().superblock().quota_inos[2], 12, &le(0));
        put_orphan(&d, d.volume().superblock().quota_inos[2].0, 1);
    }

    // NAT.
    a_nat_entry_with_a_wrong_address => ["nat-address"]: |d| {
        d.put_nat(d.ino("/plain").into(), 5, &le(d.addr(d.ino("/few").into()).0));
    }
    a_nat_entry_with_an_address_outside => ["nat-address"]: |d| { d.put_nat(d.ino("/few").into(), 5, &le(7)); }
    a_nat_entry_of_a_direct_node_with_a_wrong_address => ["nat-address"]: |d| {
        d.put_nat(d.child(d.ino("/big"), 0), 5, &le(u32::MAX - 9));
    }
    a_nat_entry_of_an_inode_with_a_wrong_inode => ["nat-inode"]: |d| {
        d.put_nat(d.ino("/few").into(), 1, &le(d.ino("/plain").0));
    }
    a_nat_entry_of_a_direct_node_with_a_wrong_inode => ["nat-inode"]: |d| {
        d.put_nat(d.child(d.ino("/big"), 0), 1, &le(d.ino("/plain").0));
    }
    a_nat_entry_of_nid_zero => ["nat-reserved"]: |d| { d.put_nat(Nid(0), 5, &le(9)); }
    a_reserved_nat_entry => ["nat-reserved"]: |d| { d.put_nat(Nid(2), 5, &le(9)); }

    // SIT.
    a_segment_of_a_wrong_type => ["sit-type"]: |d| {
        let (segment, _) = d.position(d.data(d.ino("/big"), 0));
        let entry = d.sit(segment);
        d.put_sit(segment, 0, &(4 << 10 | entry.valid_blocks).to_le_bytes());
    }
    a_segment_of_a_log_with_the_type_of_another_log => ["sit-type"]: |d| {
        let segment = d.checkpoint().1.logs[1].segment;
        d.put_sit(segment, 0, &(2 << 10 | d.sit(segment).valid_blocks).to_le_bytes());
    }
    a_segment_of_no_type => ["sit-type"]: |d| {
        let (segment, _) = d.position(d.data(d.ino("/big"), 0));
        d.put_sit(segment, 0, &(9 << 10 | d.sit(segment).valid_blocks).to_le_bytes());
    }
    data_in_a_segment_of_nodes => ["segment-mixed"]: |d| { mix(&d, ["/few/other", "/few/small"], &["/plain"]); }
    a_node_in_a_segment_of_data => ["segment-mixed"]: |d| { mix(&d, ["/few/other"], &["/plain", "/far"]); }
    a_segment_with_a_wrong_count => ["sit-count"]: |d| {
        let (segment, _) = d.position(d.data(d.ino("/big"), 0));
        let entry = d.sit(segment);
        d.put_sit(segment, 0, &((entry.kind as u16) << 10 | (entry.valid_blocks - 1)).to_le_bytes());
    }
    a_block_in_use_that_is_not_marked => ["sit-unmarked"]: |d| {
        let (segment, offset) = d.position(d.data(d.ino("/big"), 0));
        let at = usize::from(offset) / 8;
        let byte = d.sit(segment).map[at] & !(0x80 >> (offset % 8));
        d.put_sit(segment, 2 + at, &[byte]);
    }
    a_free_block_that_is_marked => ["sit-unused"]: |d| {
        let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
        let free = (0..d.volume().geometry().segments).map(SegNo).find(is_free).unwrap();
        let kind = d.sit(free).kind as u16;
        d.put_sit(free, 0, &(kind << 10 | 1).to_le_bytes());
        d.put_sit(free, 2 + 5, &[1]);
    }

    // Summaries.
    a_summary_of_data_with_a_wrong_node => ["summary-nid"]: |d| {
        let (segment, offset) = closed(&d, "/big");
        d.put(d.ssa(segment), usize::from(offset) * 7, &le(4711));
    }
    a_summary_of_data_with_a_wrong_version => ["summary-version"]: |d| {
        let (segment, offset) = closed(&d, "/big");
        d.put(d.ssa(segment), usize::from(offset) * 7 + 4, &[99]);
    }
    a_summary_of_data_with_a_wrong_offset => ["summary-offset"]: |d| {
        let (segment, offset) = closed(&d, "/big");
        d.put(d.ssa(segment), usize::from(offset) * 7 + 5, &[99, 9]);
    }
    a_summary_with_a_wrong_footer => ["summary-footer"]: |d| {
        let (segment, _) = closed(&d, "/big");
        d.put(d.ssa(segment), BLOCK - 5, &[1]);
    }
    a_summary_of_nodes_with_a_wrong_node => ["summary-nid"]: |d| {
        let (segment, offset) = closed_node(&d);
        d.put(d.ssa(segment), usize::from(offset) * 7, &le(4711));
    }

    // Footers.
    a_footer_with_a_wrong_nid => ["footer-nid"]: |d| {
        d.put_node(d.child(d.ino("/big"), 0), FOOTER, &le(1 << 20));
    }
    a_footer_of_an_inode_with_a_wrong_inode => ["footer-inode"]: |d| {
        d.put_node(d.ino("/plain").into(), FOOTER + 4, &le(1 << 20));
    }
    a_footer_of_a_direct_node_with_a_wrong_inode => ["footer-inode"]: |d| {
        d.put_node(d.child(d.ino("/big"), 0), FOOTER + 4, &le(d.ino("/plain").0));
    }
    a_footer_with_a_wrong_offset => ["footer-offset"]: |d| {
        d.put_node(d.child(d.ino("/big"), 0), FOOTER + 8, &le(77 << 3 | 1));
    }
    a_footer_below_an_indirect_node_with_a_wrong_offset => ["footer-offset"]: |d| {
        let indirect = d.child(d.ino("/far"), 2);
        let child = d.block(d.addr(indirect)).chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).find(|n| *n != 0);
        d.put_node(Nid(child.unwrap()), FOOTER + 8, &le(2 << 3 | 1));
    }

    // Inodes.
    an_inode_with_a_wrong_checksum => ["inode-checksum"]: |d| { d.put_node(d.ino("/plain").into(), 368, &[1, 2, 3, 4]); }
    an_inode_of_no_kind => ["inode-invalid"]: |d| { d.put_inode(d.ino("/few/other"), 0, &0o644u16.to_le_bytes()); }
    an_inode_with_impossible_extra_attributes => ["inode-invalid"]: |d| {
        d.put_inode(d.ino("/few/other"), 360, &40u16.to_le_bytes());
    }
    an_inode_with_too_large_inline_xattrs => ["inode-invalid"]: |d| {
        d.put_inode(d.ino("/few/other"), 362, &2000u16.to_le_bytes());
    }
    an_inode_whose_inline_data_does_not_fit => ["inode-invalid"]: |d| {
        d.put_inode(d.ino("/few/small"), 16, &9000u64.to_le_bytes());
    }
    a_child_that_is_not_in_use => ["node-child"]: |d| { d.put_inode(d.ino("/plain"), NIDS, &le(60_000)); }
    a_child_that_belongs_to_another_inode => ["node-child"]: |d| {
        d.put_inode(d.ino("/plain"), NIDS, &le(d.child(d.ino("/big"), 0).0));
    }
    a_child_that_is_missing => ["node-child"]: |d| { d.put_inode(d.ino("/big"), NIDS, &le(60_000)); }
    a_node_that_nothing_names => ["node-unreached"]: |d| { d.put_inode(d.ino("/big"), NIDS, &le(0)); }
    a_node_with_two_parents => ["node-twice"]: |d| {
        d.put_inode(d.ino("/far"), NIDS, &le(d.child(d.ino("/far"), 2).0));
    }
    an_address_outside => ["block-address"]: |d| { d.put_inode(d.ino("/plain"), ADDRS, &le(17)); }
    an_address_of_a_free_block => ["block-address"]: |d| {
        let log = d.checkpoint().1.logs[1];
        let free = d.volume().geometry().block(log.segment, BLOCKS_PER_SEGMENT as u16 - 1);
        d.put_inode(d.ino("/plain"), ADDRS + 4, &le(free.0));
    }
    an_address_of_another_files_block => ["block-address"]: |d| {
        d.put_inode(d.ino("/plain"), ADDRS + 4, &le(d.data(d.ino("/big"), 9).0));
    }
    an_address_of_a_node => ["block-address"]: |d| {
        d.put_inode(d.ino("/plain"), ADDRS + 4, &le(d.addr(d.ino("/few").into()).0));
    }
    addresses_of_zeroes_in_an_inode => ["block-address"]: |d| {
        d.put_inode(d.ino("/plain"), 348, &[0; 12]);
        d.put_inode(d.ino("/plain"), ADDRS, &[0; 8]);
    }
    addresses_of_zeroes_in_a_direct_node => ["block-address"]: |d| {
        d.put_inode(d.ino("/big"), 348, &[0; 12]);
        d.put_node(d.child(d.ino("/big"), 0), 512, &[0; 512]);
    }
    addresses_of_ones_in_a_direct_node => ["block-address"]: |d| {
        d.put_inode(d.ino("/big"), 348, &[0; 12]);
        d.put_node(d.child(d.ino("/big"), 0), 512, &[0xFF; 512]);
    }
    an_address_in_a_direct_node_of_another_files_block => ["block-address"]: |d| {
        d.put_node(d.child(d.ino("/big"), 0), 40, &le(d.data(d.ino("/plain"), 2).0));
    }
    a_device_that_names_nodes => ["inode-invalid", "sit-unused"]: |d| {
        d.put_inode(d.ino("/far"), 0, &0o020_644u16.to_le_bytes());
    }
    a_directory_that_says_to_be_a_device => ["inode-invalid", "inode-unreached", "sit-unused"]: |d| {
        d.put_inode(d.ino("/many"), 0, &0o060_755u16.to_le_bytes());
    }
    a_mark_of_inline_data_on_a_file_with_blocks => ["inode-invalid", "sit-unused"]: |d| {
        mark_as_inline(&d, "/plain");
    }
    a_mark_of_inline_data_on_a_small_file_with_a_block => ["inline-reserved", "sit-unused"]: |d| {
        d.put_inode(d.ino("/plain"), 16, &100u64.to_le_bytes());
        mark_as_inline(&d, "/plain");
    }
    an_extent_that_is_stale => ["extent"]: |d| {
        let start = d.data(d.ino("/plain"), 0).0;
        d.put_inode(d.ino("/plain"), 348, &[le(0), le(start + 9), le(3)].concat());
    }
    an_extent_of_inline_content => ["extent"]: |d| {
        d.put_inode(d.ino("/few/small"), 348, &[le(0), le(d.data(d.ino("/big"), 0).0), le(3)].concat());
    }
    an_extent_past_the_addresses => ["extent"]: |d| {
        // The node for the last of the blocks is missing.
        let start = d.data(d.ino("/far"), 0).0;
        d.put_inode(d.ino("/far"), 348, &[le(2000), le(start), le(1)].concat());
    }
    an_address_before_inline_content => ["inline-reserved"]: |d| {
        let few = d.ino("/few");
        d.put_inode(few, d.volume().inode(few).unwrap().layout().inline_range().start - 4, &le(9));
    }
    inline_data_without_its_mark => ["inline-unmarked"]: |d| {
        let small = d.ino("/few/small");
        let marks = d.volume().inode(small).unwrap().head().inline;
        assert_eq!(marks & 8, 8, "the file has inline data");
        d.put_inode(small, 3, &[marks & !8]);
    }
    a_wrong_count_of_an_inodes_blocks => ["block-count"]: |d| {
        let blocks = d.volume().inode(d.ino("/plain")).unwrap().head().blocks.get();
        d.put_inode(d.ino("/plain"), 24, &(blocks + 1).to_le_bytes());
        // The quota file counts the same number.
        let record = quota_place(&d);
        for (addr, at) in record {
            let space = u64::from_le_bytes(d.block(addr)[at + 48..at + 56].try_into().unwrap());
            d.put(addr, at + 48, &(space + BLOCK as u64).to_le_bytes());
        }
    }
    a_wrong_count_of_saved_blocks => ["saved-blocks"]: |d| { d.put_inode(d.ino("/compressed"), 384, &1u64.to_le_bytes()); }
    a_cluster_without_data => ["cluster"]: |d| {
        let inode = d.volume().inode(d.ino("/compressed")).unwrap();
        assert_eq!(inode.addr(0), BlockAddr::COMPRESS);
        d.put_inode(d.ino("/compressed"), ADDRS + 12, &le(u32::MAX - 1));
    }
    an_xattr_node_that_is_not_in_use => ["xattr-node"]: |d| { d.put_inode(d.ino("/attributes"), 76, &le(60_000)); }
    xattrs_with_a_wrong_header => ["xattr-invalid"]: |d| {
        let range = d.volume().inode(d.ino("/few/small")).unwrap().layout().inline_xattr_range();
        d.put_inode(d.ino("/few/small"), range.start, &[1]);
    }
    bytes_after_the_xattrs => ["xattr-tail"]: |d| {
        let range = d.volume().inode(d.ino("/few/small")).unwrap().layout().inline_xattr_range();
        d.put_inode(d.ino("/few/small"), range.end - 4, &[1]);
    }

    // Directories.
    a_dentry_with_a_wrong_hash => ["dentry-hash"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "small"), 0, &[1, 2, 3]);
    }
    a_dentry_in_a_wrong_bucket => ["dentry-place"]: |d| {
        let many = d.ino("/many");
        // The name in the first block of level 1 moves by exchange with one of another bucket.
        let (a, b) = (d.data(many, 2), d.data(many, 4));
        let (first, second) = (d.block(a), d.block(b));
        d.put(a, 0, &second);
        d.put(b, 0, &first);
    }
    a_dentry_without_a_name => ["dentry-name", "link-count"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "small"), 8, &[0, 0]);
    }
    a_name_with_a_slash => ["dentry-hash", "dentry-name"]: |d| {
        let (addr, at) = d.name_at(d.ino("/few"), d.slot(d.ino("/few"), "small"));
        d.put(addr, at + 1, b"/");
        d.seal(d.ino("/few"));
    }
    a_dentry_of_an_unused_inode => ["dentry-inode", "inode-unreached"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "other"), 4, &le(60_000));
    }
    a_dentry_of_a_wrong_kind => ["dentry-type"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "other"), 10, &[7]);
    }
    lost_dots => ["dots-missing"]: |d| {
        let few = d.ino("/few");
        let start = d.volume().inode(few).unwrap().layout().inline_range().start;
        let addr = d.addr(few.into());
        let bitmap = d.block(addr)[start];
        d.put_inode(few, start, &[bitmap & !1]);
    }
    doubled_dots => ["dots-twice"]: |d| { make_dot(&d, "..", 2); }
    dots_with_a_wrong_hash => ["dentry-hash"]: |d| {
        d.put_dentry(d.ino("/few"), 0, 0, &le(1));
        d.put_dentry(d.ino("/few"), 1, 0, &le(1 << 31));
    }
    dots_with_damaged_names => ["dentry-name"]: |d| {
        let few = d.ino("/few");
        for (slot, name) in [(0, &b"x"[..]), (1, b"yz")] {
            let (addr, at) = d.name_at(few, slot);
            d.put(addr, at, name);
        }
        d.seal(few);
    }
    a_wrong_parent => ["dots-wrong"]: |d| { d.put_dentry(d.ino("/few"), 1, 4, &le(d.ino("/many").0)); }
    a_directory_whose_inode_names_another_parent => ["dir-parent"]: |d| {
        d.put_inode(d.ino("/few/below"), 84, &le(ROOT.0));
    }
    a_parent_of_number_zero => ["dots-wrong"]: |d| { d.put_dentry(d.ino("/few"), 1, 4, &le(0)); }
    a_wrong_self => ["dots-wrong"]: |d| { d.put_dentry(d.ino("/few"), 0, 4, &le(3)); }
    a_depth_that_is_too_small => ["dir-depth"]: |d| { d.put_inode(d.ino("/many"), 72, &le(1)); }
    a_size_that_is_too_small => ["dir-size"]: |d| { d.put_inode(d.ino("/many"), 16, &4096u64.to_le_bytes()); }
    a_doubled_name => ["dentry-twice"]: |d| {
        // "other" becomes a second "small", which is as long, with the same hash.
        let few = d.ino("/few");
        let (small, other) = (d.slot(few, "small"), d.slot(few, "other"));
        let (addr, at) = d.dentry_at(few, small);
        let hash = d.block(addr)[at..at + 4].to_vec();
        let (names, name) = d.name_at(few, other);
        d.put(names, name, b"small");
        d.put_dentry(few, other, 0, &hash);
    }
    a_doubled_name_in_a_wrong_bucket => ["dentry-place", "dentry-twice"]: |d| {
        // A name of another bucket becomes "entry 100", which is as long.
        let many = d.ino("/many");
        let entry = |n: u32| d.volume().find_entry(many, format!("entry {n}").as_bytes()).unwrap().unwrap();
        let right = entry(100);
        let (from, at) = (d.data(many, right.block), 30 + right.slot * 11);
        let hash = d.block(from)[at..at + 4].to_vec();
        let is_wrong = |found: &f2fs::engine::Found| {
            let (level, bucket) = dir_hash::level_of(found.block, 0).unwrap();
            u64::from(u32::from_le_bytes(hash[..].try_into().unwrap())) % dir_hash::buckets(level, 0) != bucket
        };
        let wrong = (101..700).map(entry).find(is_wrong).expect("an entry in another bucket");
        let to = d.data(many, wrong.block);
        d.put(to, 30 + wrong.slot * 11, &hash);
        d.put(to, 30 + 214 * 11 + wrong.slot * 8, b"entry 100");
    }
    a_directory_with_two_names => ["dentry-type", "dir-second-name", "inode-unreached"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "other"), 4, &le(d.ino("/many").0));
        // The links that follow from the names.
        let links = |ino| d.volume().inode(ino).unwrap().head().links.get();
        d.put_inode(d.ino("/few"), 12, &le(links(d.ino("/few")) + 1));
        d.put_inode(d.ino("/many"), 12, &le(links(d.ino("/many")) + 1));
    }
    a_directory_inside_itself => ["dentry-inode", "inode-unreached", "link-count"]: |d| {
        // "below" in "few" becomes "few" itself.
        let few = d.ino("/few");
        d.put_dentry(few, d.slot(few, "below"), 4, &le(few.0));
    }
    a_directory_below_itself => ["dir-cycle", "dir-parent", "dots-wrong", "link-count"]: |d| {
        // "below" gets the name "up" for "few", and the root's name of "few" becomes another one of "plain".
        let (few, below) = (d.ino("/few"), d.ino("/few/below"));
        let start = d.volume().inode(below).unwrap().layout().inline_range().start;
        let (addr, name) = d.name_at(below, 2);
        d.put(addr, start, &[0b111]);
        d.put(addr, name, b"up");
        let hash = f2fs::format::hash::name_hash(b"up");
        d.put_dentry(below, 2, 0, &[&le(hash)[..], &le(few.0), &[2, 0, 2]].concat());
        d.put_dentry(ROOT, d.slot(ROOT, "few"), 4, &le(d.ino("/plain").0));
        d.put_dentry(ROOT, d.slot(ROOT, "few"), 10, &[1]);
    }
    a_wrong_count_of_links => ["link-count"]: |d| { d.put_inode(d.ino("/plain"), 12, &le(9)); }
    a_directory_with_a_wrong_count_of_links => ["link-count"]: |d| { d.put_inode(d.ino("/few"), 12, &le(2)); }

    // Quota.
    a_quota_record_with_a_wrong_usage => ["quota-usage"]: |d| {
        let (addr, at) = quota_place(&d)[0];
        d.put(addr, at + 24, &[0xEE]);
    }
    a_quota_file_without_its_header => ["quota-file"]: |d| {
        let ino = d.volume().superblock().quota_inos[0];
        d.put(d.data(ino, 0), 0, &[0; 4]);
    }

    a_checkpoint_that_asks_for_new_quota_files => ["quota-asks"]: |d| { ask_for_quota(&d); }
    a_checkpoint_that_asks_for_new_quota_files_with_a_wrong_usage => ["quota-asks"]: |d| {
        ask_for_quota(&d);
        let (addr, at) = quota_place(&d)[0];
        d.put(addr, at + 24, &[0xEE]);
    }

    // Roll-forward.
    a_chain_that_loops => ["chain-loop"]: |d| { chain(&d, &[1, 2, 1]); }
    a_chain_with_a_wrong_address => ["chain-address"]: |d| {
        chain(&d, &[1, 2]);
        let (log, geometry) = (d.checkpoint().1.logs[4], *d.volume().geometry());
        let first = geometry.block(log.segment, log.offset);
        d.put(first, 100, &le(5));
    }
}

/// Changes a superblock and sets its checksum.
fn put_superblock(d: &Damaged, copy: u32, at: usize, bytes: &[u8]) {
    d.put(BlockAddr(copy), 1024 + at, bytes);
    let block = d.block(BlockAddr(copy));
    let sum = f2fs::format::crc::f2fs_crc(&block[1024..1024 + 3068]);
    d.put(BlockAddr(copy), 1024 + 3068, &le(sum));
}

/// Copies the entry of the first segment into the journal of the SIT, and changes bits of a byte of the entry below.
fn put_below_journal(d: &Damaged, byte: usize, bits: u8) {
    let (addr, at) = d.journals()[1];
    let count = u16::from_le_bytes(d.block(addr)[at..at + 2].try_into().unwrap());
    assert!(count < 6, "the test needs room in the journal");
    let (table, place) = d.sit_place(SegNo(0));
    assert_ne!(table, addr, "the journal has no entry yet");
    let entry = d.block(table)[place..place + 74].to_vec();
    d.put(addr, at, &(count + 1).to_le_bytes());
    d.put(addr, at + 2 + usize::from(count) * 78, &[&le(0)[..], &entry].concat());
    d.put(table, place + byte, &[entry[byte] ^ bits]);
}

/// Inserts an orphan block before the summaries of the pack that counts.
fn put_orphan(d: &Damaged, ino: u32, count: u32) {
    let (pack, checkpoint) = d.checkpoint();
    let (start, first) = (d.pack(pack), checkpoint.summaries_start);
    for n in (first..checkpoint.pack_blocks).rev() {
        let block = d.block(BlockAddr(start.0 + n));
        d.put(BlockAddr(start.0 + n + 1), 0, &block);
    }
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(&le(ino));
    block[BLOCK - 8..BLOCK - 4].copy_from_slice(&le(count));
    d.put(BlockAddr(start.0 + first), 0, &block);
    let mut head = d.block(start);
    head[136..140].copy_from_slice(&le(checkpoint.pack_blocks + 1));
    head[140..144].copy_from_slice(&le(first + 1));
    head[132..136].copy_from_slice(&le(checkpoint.flags.0 | 2));
    let at = checkpoint.checksum_offset as usize;
    let sum = f2fs::format::crc::f2fs_crc(&head[..at]);
    head[at..at + 4].copy_from_slice(&le(sum));
    d.put(start, 0, &head);
    d.put(BlockAddr(start.0 + checkpoint.pack_blocks), 0, &head);
}

/// Position of a block of a file that lies in a closed segment.
fn closed(d: &Damaged, path: &str) -> (SegNo, u16) {
    let ino = d.ino(path);
    let positions = (0..1500).map(|block| d.position(d.data(ino, block)));
    positions.into_iter().find(|(segment, _)| !d.is_log(*segment)).expect("the file fills segments")
}

/// Position of a node that lies in a closed segment.
fn closed_node(d: &Damaged) -> (SegNo, u16) {
    let nids = (0..700).map(|n| d.addr(d.ino(&format!("/many/entry {n}")).into()));
    nids.map(|addr| d.position(addr)).find(|(segment, _)| !d.is_log(*segment)).expect("nodes fill a segment")
}

/// Byte places of root's quota records, of the user, the group and the project.
fn quota_place(d: &Damaged) -> Vec<(BlockAddr, usize)> {
    use f2fs::format::quota::QuotaKind;
    let place = |kind: QuotaKind| {
        let records = d.volume().quota_records(kind).unwrap();
        let record = records.iter().find(|located| located.record.id.get() == 0).unwrap();
        let ino = d.volume().superblock().quota_inos[kind.index()];
        (d.data(ino, record.offset / BLOCK as u64), record.offset as usize % BLOCK)
    };
    QuotaKind::ALL.map(place).to_vec()
}

/// Sets the flag quota_need_fsck.
fn ask_for_quota(d: &Damaged) {
    let flags = d.checkpoint().1.flags.0;
    d.put_checkpoint(132, &le(flags | 0x800));
}

/// Sets the marks of inline data in an inode.
fn mark_as_inline(d: &Damaged, path: &str) {
    let ino = d.ino(path);
    let marks = d.volume().inode(ino).unwrap().head().inline;
    d.put_inode(ino, 3, &[marks | 2 | 8]);
}

/// Moves the inodes of some files, and the first blocks of others, to one free segment. The type of the segment is that of
/// the more.
fn mix<const N: usize>(d: &Damaged, nodes: [&str; N], data: &[&str]) {
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let geometry = *d.volume().geometry();
    let segment = (0..geometry.segments).map(SegNo).find(is_free).expect("a free segment");
    let is_node = N > data.len();
    d.put_sit(segment, 0, &(if is_node { 4u16 << 10 } else { 1 << 10 }).to_le_bytes());
    d.put_sit(segment, 2, &[0; 64]);
    d.put_checkpoint(32, &le(d.checkpoint().1.free_segments - 1));
    d.put(d.ssa(segment), BLOCK - 5, &[u8::from(is_node)]);
    for (n, path) in nodes.iter().enumerate() {
        let nid = Nid::from(d.ino(path));
        let to = geometry.block(segment, n as u16);
        d.move_block(d.addr(nid), to, &[&le(nid.0)[..], &[0; 3]].concat());
        d.put_nat(nid, 5, &le(to.0));
    }
    for (n, path) in (N..).zip(data) {
        let ino = d.ino(path);
        let to = geometry.block(segment, n as u16);
        let version = d.volume().nat_entry(ino.into()).unwrap().version;
        d.move_block(d.data(ino, 0), to, &[&le(ino.0)[..], &[version, 0, 0]].concat());
        d.put_inode(ino, 348, &[0; 12]);
        d.put_inode(ino, ADDRS, &le(to.0));
    }
}

/// Enters a further name of one slot into a free slot of "/few".
fn make_dot(d: &Damaged, name: &str, kind: u8) {
    let few = d.ino("/few");
    let range = d.volume().inode(few).unwrap().layout().inline_range();
    let addr = d.addr(few.into());
    let slot = 20;
    let bitmap = d.block(addr)[range.start + slot / 8];
    d.put(addr, range.start + slot / 8, &[bitmap | 1 << (slot % 8)]);
    let (names, at) = d.name_at(few, slot);
    d.put(names, at, name.as_bytes());
    let entry = [&le(0)[..], &le(ROOT.0), &(name.len() as u16).to_le_bytes(), &[kind]].concat();
    d.put_dentry(few, slot, 0, &entry);
}

/// Writes direct nodes behind the warm node log, each with the position of the next.
fn chain(d: &Damaged, next: &[u16]) {
    let (log, geometry) = (d.checkpoint().1.logs[4], *d.volume().geometry());
    // Nodes carry the checksum of the head, which an earlier change may have set.
    let (head, at) = (d.block(d.pack(d.checkpoint().0)), d.checkpoint().1.checksum_offset as usize);
    let sum = u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let version = d.checkpoint().1.version.0 | u64::from(sum) << 32;
    let at = |n: u16| geometry.block(log.segment, log.offset + n);
    for (n, to) in (0..).zip(next) {
        let mut node = vec![0; BLOCK];
        node[FOOTER..FOOTER + 4].copy_from_slice(&le(50_000));
        node[FOOTER + 4..FOOTER + 8].copy_from_slice(&le(d.ino("/big").0));
        node[FOOTER + 8..FOOTER + 12].copy_from_slice(&le(2 << 3 | 3));
        node[FOOTER + 12..FOOTER + 20].copy_from_slice(&version.to_le_bytes());
        node[FOOTER + 20..].copy_from_slice(&le(at(*to).0));
        d.put(at(n), 0, &node);
    }
}
