//! Bursts: sequences of operations that belong together. A method returns the first one, and leaves the others
//! for the next calls.

use guest::Op;

use super::{Generator, NAMELESS, Tree, join};
use crate::model::{Body, Model};

impl Generator {
    /// Makes and removes a file like a database's journal: the file and its directory are made durable.
    pub(super) fn journal(&mut self, tree: &Tree) -> Op {
        let dir = self.pick(&tree.dirs).clone();
        let path = if self.rng.chance(0.8) { join(&dir, b"journal") } else { self.new_path(tree) };
        let mut steps = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let written = Op::Write { path: path.clone(), offset: 0, content: self.content(20_000) };
            let data_only = self.rng.chance(0.8);
            let names = Op::Fsync { path: dir.clone(), data_only };
            steps.extend([
                (1.0, written),
                (0.9, Op::Fsync { path: path.clone(), data_only }),
                (0.8, names.clone()),
                (0.3, Op::Write { path: path.clone(), offset: 0, content: self.content(12) }),
                (0.3, Op::Fsync { path: path.clone(), data_only }),
                (0.1, Op::Rename { from: path.clone(), to: join(&dir, b"was journal") }),
                (0.1, Op::Link { from: path.clone(), to: join(&dir, b"also journal") }),
                (0.7, Op::Unlink { path: path.clone() }),
                (0.3, names),
            ]);
        }
        for (chance, op) in steps.into_iter().rev() {
            if self.rng.chance(chance) {
                self.burst.push(op);
            }
        }
        Op::Fsync { path: dir, data_only: true }
    }

    /// Makes a file without a name, writes to it, and gives it a name.
    pub(super) fn nameless(&mut self, tree: &Tree) -> Op {
        let (dir, to, handle) = (self.pick(&tree.dirs).clone(), self.new_path(tree), NAMELESS);
        let steps = [
            (0.8, Op::WriteOpen { handle, offset: 0, content: self.content(20_000) }),
            (0.2, Op::Checkpoint { path: "/".into() }),
            (0.2, Op::FsyncOpen { handle }),
            (0.8, Op::LinkOpen { handle, to: to.clone() }),
            (0.3, Op::WriteOpen { handle, offset: self.rng.below(8192), content: self.content(5000) }),
            (0.5, Op::Fsync { path: to, data_only: false }),
            (0.2, Op::FsyncOpen { handle }),
            (1.0, Op::Close { handle }),
        ];
        for (chance, op) in steps.into_iter().rev() {
            let promises = matches!(op, Op::Fsync { .. } | Op::FsyncOpen { .. });
            if self.rng.chance(chance) && (self.mix.fsync || !promises) {
                self.burst.push(op);
            }
        }
        Op::OpenNameless { dir, mode: self.mode(), handle: NAMELESS }
    }

    /// Gives a directory many names at once, or removes those of an earlier burst.
    pub(super) fn many_names(&mut self, tree: &Tree) -> Op {
        let dir = self.pick(&tree.dirs).clone();
        let count = 20 + self.rng.below(230);
        let length = [1, 9, 30, 200][self.rng.below(4) as usize];
        let remove = self.rng.chance(0.3);
        let source = self.file(tree);
        for n in 0..count {
            let name = format!("{n:03}{}", "n".repeat(length));
            let path = join(&dir, name.as_bytes());
            self.burst.push(match (remove, n % 8) {
                (true, _) => Op::Unlink { path },
                (false, 0) => Op::Mknod { path, mode: 0o100_600, major: 0, minor: 0 },
                (false, _) => Op::Link { from: source.clone(), to: path },
            });
        }
        Op::Mkdir { path: dir, mode: 0o755 }
    }

    /// Writes a file piece by piece: forwards, or every second block.
    pub(super) fn many_writes(&mut self, model: &Model, tree: &Tree) -> Op {
        let path = self.file(tree);
        let start = self.offset(model, &path).min(8 << 20);
        let (length, step) = match self.rng.below(3) {
            0 => (4096, 8192),
            1 => (1000, 1000),
            _ => (5000, 5000),
        };
        for n in (0..1 + self.rng.below(60)).rev() {
            let content = self.content_of(length);
            self.burst.push(Op::Write { path: path.clone(), offset: start + n * step, content });
        }
        Op::Truncate { path, size: start }
    }

    /// Empties a directory.
    pub(super) fn many_removals(&mut self, model: &Model, tree: &Tree) -> Op {
        let dir = self.pick(&tree.dirs).clone();
        let Ok(id) = model.find(&dir.0) else { return Op::Rmdir { path: dir } };
        if let Body::Dir(names) = &model.inode(id).body {
            for (name, _) in names.names.values() {
                self.burst.push(Op::Unlink { path: join(&dir, name) });
            }
        }
        Op::Rmdir { path: dir }
    }
}
