// Further kinds of damage, in inodes: their kind, their marks, their compression. See cases.rs.

damage! {
    a_socket_that_names_nodes => ["inode-invalid", "sit-unused"]: |d| {
        d.put_inode(d.ino("/far"), 0, &0o140_644u16.to_le_bytes());
    }
    a_fifo_with_blocks => ["inode-invalid", "sit-unused"]: |d| {
        d.put_inode(d.ino("/plain"), 0, &0o010_644u16.to_le_bytes());
    }
    a_file_of_many_blocks_that_says_to_be_a_symbolic_link => ["inode-invalid"]: |d| {
        d.put_inode(d.ino("/plain"), 0, &0o120_644u16.to_le_bytes());
    }
    a_root_that_says_to_be_a_socket => ["inode-invalid", "inode-unreached", "link-count", "sit-unused"]: |d| {
        d.put_inode(ROOT, 0, &0o140_755u16.to_le_bytes());
    }
    a_name_that_calls_a_directory_with_inline_entries_a_file => ["dentry-type"]: |d| {
        d.put_dentry(d.ino("/few"), d.slot(d.ino("/few"), "below"), 10, &[1]);
    }
    a_name_that_calls_a_directory_with_blocks_a_file => ["dentry-type"]: |d| {
        d.put_dentry(ROOT, d.slot(ROOT, "many"), 10, &[1]);
    }
    a_mark_of_encryption_on_a_file_without_a_context => ["encryption"]: |d| { mark_as_encrypted(&d, "/plain"); }
    a_mark_of_encryption_on_inline_data => ["inode-invalid"]: |d| { mark_as_encrypted(&d, "/few/small"); }
    a_mark_of_encryption_on_a_directory_without_a_context => ["encryption"]: |d| { mark_as_encrypted(&d, "/many"); }
    a_mark_of_encryption_without_a_context_on_a_volume_with_encryption => ["encryption"]: |d| {
        let feature = d.volume().superblock().features.0 | 1;
        for copy in [0, 1] {
            put_superblock(&d, copy, 2180, &le(feature));
        }
        mark_as_encrypted(&d, "/few");
        mark_as_encrypted(&d, "/far");
    }
    a_mark_of_verity_on_a_file_without_a_descriptor => ["verity"]: |d| { mark_as_sealed(&d, "/plain"); }
    a_mark_of_verity_on_a_directory => ["verity"]: |d| { mark_as_sealed(&d, "/many"); }
    a_mark_of_verity_without_a_descriptor_on_a_volume_with_verity => ["verity"]: |d| {
        let feature = d.volume().superblock().features.0 | 0x400;
        for copy in [0, 1] {
            put_superblock(&d, copy, 2180, &le(feature));
        }
        mark_as_sealed(&d, "/big");
        mark_as_sealed(&d, "/far");
    }
    a_size_with_a_damaged_upper_half => ["inode-invalid", "sit-unused"]: |d| {
        for path in ["/plain", "/big", "/few/small"] {
            let size = d.volume().inode(d.ino(path)).unwrap().head().size.get();
            d.put_inode(d.ino(path), 16, &(size | 1 << 50).to_le_bytes());
        }
    }
    a_compressed_file_with_the_number_of_another_algorithm => ["cluster"]: |d| {
        let own = d.volume().inode(d.ino("/compressed")).unwrap().compression().unwrap().algorithm.code();
        assert_ne!(own, 2);
        d.put_inode(d.ino("/compressed"), 392, &[2]);
    }
}

/// Sets the mark of fs-verity in an inode.
fn mark_as_sealed(d: &Damaged, path: &str) {
    let ino = d.ino(path);
    d.put_inode(ino, 2, &[d.volume().inode(ino).unwrap().head().advise | 0x40]);
}

/// Sets the mark of encryption in an inode.
fn mark_as_encrypted(d: &Damaged, path: &str) {
    let ino = d.ino(path);
    d.put_inode(ino, 2, &[d.volume().inode(ino).unwrap().head().advise | 4]);
}
