use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use crate::isolation::system;

/// Request codes of `linux/fs.h`: `_IOWR('X', 119, int)` and `_IOWR('X', 120, int)`.
const FIFREEZE: libc::c_ulong = 0xc004_5877;
const FITHAW: libc::c_ulong = 0xc004_5878;

/// A separate file system for one member, in an image file. It can be filled and frozen.
///
/// On drop, the file system is unmounted and its image is removed. After a crash, the mount disappears with
/// the mount namespace of the program.
pub struct SmallDisk {
    image: PathBuf,
    mounted_at: PathBuf,
    mounted: bool,
}

impl SmallDisk {
    /// Creates an image file in `dir`, and mounts it as `dir/name`.
    ///
    /// # Errors
    /// Returns the error of the operating system, or of the tools that create and mount the file system.
    pub fn make(dir: &Path, name: &str, bytes: u64) -> io::Result<SmallDisk> {
        let (image, mounted_at) = (dir.join(format!("{name}.img")), dir.join(name));
        std::fs::create_dir_all(&mounted_at)?;
        File::create(&image)?.set_len(bytes)?;
        let mut disk = SmallDisk { image, mounted_at, mounted: false };
        let image = path_text(&disk.image)?;
        // Reserve no blocks for root. Otherwise a member that runs as root could still write to a full disk.
        system("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", "nodiscard", image])?;
        system("mount", &["-o", "loop,noatime", image, path_text(&disk.mounted_at)?])?;
        disk.mounted = true;
        Ok(disk)
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mounted_at
    }

    fn control(&self, request: libc::c_ulong) -> io::Result<()> {
        let dir = File::open(&self.mounted_at)?;
        // SAFETY: the descriptor is open, and both requests ignore their argument.
        if unsafe { libc::ioctl(dir.as_raw_fd(), request as _, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Freezes the file system. From now on, writes and syncs block until it is thawed.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn freeze(&self) -> io::Result<()> {
        self.control(FIFREEZE)
    }

    /// Thaws the file system. Does nothing if it is not frozen.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn thaw(&self) -> io::Result<()> {
        match self.control(FITHAW) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }

    fn ballast(&self) -> PathBuf {
        self.mounted_at.join("ballast")
    }

    /// Uses up all free space of the file system except `but_bytes` bytes.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn fill(&self, but_bytes: u64) -> io::Result<()> {
        const PORTION: u64 = 4 << 20;
        let file = OpenOptions::new().create(true).append(true).open(self.ballast())?;
        let mut len = file.metadata()?.len();
        let mut portion = PORTION;
        while portion >= 4096 {
            let (from, bytes) = (libc::off_t::try_from(len), libc::off_t::try_from(portion));
            let (Ok(from), Ok(bytes)) = (from, bytes) else { return Err(io::ErrorKind::FileTooLarge.into()) };
            // SAFETY: the descriptor is open.
            if unsafe { libc::posix_fallocate(file.as_raw_fd(), from, bytes) } == 0 {
                len += portion;
            } else {
                portion /= 2;
            }
        }
        file.set_len(len.saturating_sub(but_bytes))
    }

    /// Frees the space that [`SmallDisk::fill`] has used up.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn free(&self) -> io::Result<()> {
        match std::fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Unmounts the file system, and removes its image.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example if a process still uses it.
    pub fn remove(mut self) -> io::Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> io::Result<()> {
        if self.mounted {
            self.thaw()?;
            system("umount", &[path_text(&self.mounted_at)?])?;
            self.mounted = false;
        }
        std::fs::remove_file(&self.image)?;
        std::fs::remove_dir(&self.mounted_at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.image.exists()
            && let Err(error) = self.unmount()
        {
            eprintln!("{}: {error}", self.mounted_at.display());
        }
    }
}

fn path_text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{}: not UTF-8", path.display())))
}
