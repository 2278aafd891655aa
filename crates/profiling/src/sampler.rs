//! Records the stacks of a profile of processor time: starts and stops the timer, and contains the signal
//! handler and the buffer into which the handler writes.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::profile::{self, Stack};

/// Processor time of the process between two samples.
const PERIOD: Duration = Duration::from_millis(10);
/// Maximum number of frames that are recorded of a stack, from the innermost frame on.
const FRAMES_MAX: usize = 62;
/// Number of words of a slot. A slot contains one sample: the thread id, the number of frames, and the
/// addresses of the frames.
const SLOT_WORDS: usize = FRAMES_MAX + 2;
/// Maximum number of stacks that a profile records, which take 32 MiB. Samples beyond it are only counted.
pub const STACKS_MAX: usize = 1 << 16;

/// Memory into which the handler writes.
struct Buffer {
    words: Box<[AtomicUsize]>,
    slots: usize,
    /// Number of samples, whether they were recorded or only counted.
    taken: AtomicUsize,
}

impl Buffer {
    fn new(slots: usize) -> Buffer {
        let words = (0..slots * SLOT_WORDS).map(|_| AtomicUsize::new(0)).collect();
        Buffer { words, slots, taken: AtomicUsize::new(0) }
    }

    /// Reserves the next free slot and returns its words; returns `None` if all slots are used. Counts the
    /// sample in both cases.
    fn claim(&self) -> Option<&[AtomicUsize]> {
        let slot = self.taken.fetch_add(1, Ordering::Relaxed);
        self.words.chunks_exact(SLOT_WORDS).nth(slot)
    }
}

/// Buffer of the profile in progress; null if there is none.
static BUFFER: AtomicPtr<Buffer> = AtomicPtr::new(ptr::null_mut());
/// Number of signal handlers that are running. All accesses to this counter and to [`BUFFER`] are
/// sequentially consistent. Without this total order, a handler could load the buffer while the end of the
/// profile reads a count of 0 and then frees the buffer.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
/// True while a [`Turn`] exists, which is while a profile is being taken or encoded.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A profile of processor time in progress. Dropping it ends the profile without a result.
pub struct CpuProfile {
    buffer: Option<Box<Buffer>>,
    shared: *mut Buffer,
    began: Instant,
    wall: SystemTime,
    _turn: Turn,
}

/// The exclusive right to take a profile. Dropping it gives the right back.
#[derive(Debug)]
pub struct Turn(());

impl Turn {
    /// Acquires the right to take a profile. Does not block.
    ///
    /// # Errors
    ///
    /// Returns an error if a profile is being taken or encoded.
    pub fn take() -> Result<Turn, Busy> {
        if TAKEN.swap(true, Ordering::AcqRel) { Err(Busy::Already) } else { Ok(Turn(())) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

// SAFETY: the pointer leads to memory that this value owns, and the other fields are not bound to a thread.
unsafe impl Send for CpuProfile {}

/// Reason why a profile cannot be taken.
#[derive(Debug)]
pub enum Busy {
    /// Another profile is in progress.
    Already,
    /// The kernel refused the handler or the timer.
    Refused(io::Error),
}

impl CpuProfile {
    /// Begins a profile that is expected to last `seconds` on a machine with `processors` processors, which
    /// determine the size of the buffer. The call takes a while, because it allocates and writes up to 32 MiB
    /// of memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel refuses the handler or the timer.
    pub fn start(turn: Turn, seconds: u64, processors: usize) -> Result<CpuProfile, Busy> {
        let each_second = usize::try_from(1_000 / PERIOD.as_millis()).unwrap_or(100) * processors.max(1);
        let slots =
            usize::try_from(seconds).unwrap_or(usize::MAX).saturating_add(1).saturating_mul(each_second);
        let shared = Box::into_raw(Box::new(Buffer::new(slots.min(STACKS_MAX))));
        // Create the value before the timer is started, so that an early return below drops it, which ends
        // the profile.
        let profile =
            CpuProfile { buffer: None, shared, began: Instant::now(), wall: SystemTime::now(), _turn: turn };
        install().map_err(Busy::Refused)?;
        // Use the unwinder once: it allocates memory at its first use, which must not happen in the signal
        // handler.
        walk(&mut |_, _| false);
        BUFFER.store(shared, Ordering::SeqCst);
        arm(PERIOD).map_err(Busy::Refused)?;
        Ok(profile)
    }

    /// Ends the profile, and returns it in pprof's format, compressed. The call takes a while, because it
    /// reads symbol tables.
    pub fn finish(mut self) -> Vec<u8> {
        let took = self.began.elapsed();
        self.end();
        let stacks = self.buffer.as_deref().map(stacks).unwrap_or_default();
        let lost =
            self.buffer.as_ref().map_or(0, |b| b.taken.load(Ordering::Relaxed).saturating_sub(b.slots));
        profile::cpu(&stacks, lost, PERIOD, took, self.wall)
    }

    /// Stops the timer, waits until no handler uses the buffer any more, and takes the buffer back.
    fn end(&mut self) {
        if self.shared.is_null() {
            return;
        }
        // Ignore the result: stopping the timer cannot fail, since the arguments are valid.
        let _ = arm(Duration::ZERO);
        BUFFER.store(ptr::null_mut(), Ordering::SeqCst);
        while HANDLERS.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: the pointer came from a `Box`, no handler uses it any more, and it is taken back only once.
        self.buffer = Some(unsafe { Box::from_raw(self.shared) });
        self.shared = ptr::null_mut();
    }
}

impl Drop for CpuProfile {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the recorded stacks.
fn stacks(buffer: &Buffer) -> Vec<Stack> {
    let taken = buffer.taken.load(Ordering::Relaxed).min(buffer.slots);
    let slots = buffer.words.chunks_exact(SLOT_WORDS).take(taken);
    slots
        .map(|words| {
            let word = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            let frames = (0..word(1).min(FRAMES_MAX)).map(|at| word(at + 2)).collect();
            Stack { thread: word(0), frames }
        })
        .collect()
}

/// Installs the signal handler at the first call. It stays installed, because a signal that is still pending
/// after the end of a profile would otherwise end the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let done = *INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int) = on_signal;
        // SAFETY: an action of zeros is valid; the handler does only what a signal handler may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) == 0
        }
    });
    if done { Ok(()) } else { Err(io::Error::other("SIGPROF cannot be handled")) }
}

/// Sets the time between two signals; zero stops them.
fn arm(period: Duration) -> io::Result<()> {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: libc::suseconds_t::try_from(period.as_micros()).unwrap_or(libc::suseconds_t::MAX),
    };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the kernel reads the timer, and nothing is written.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: c_int) {
    // SAFETY: `errno` is the calling thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to this thread's own variable, see above.
    let saved = unsafe { *errno };
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    let buffer = BUFFER.load(Ordering::SeqCst);
    // SAFETY: before the owner frees the buffer, it clears the pointer and waits until no handler runs any
    // more.
    if let Some(words) = unsafe { buffer.as_ref() }.and_then(Buffer::claim) {
        note(words);
    }
    HANDLERS.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: `errno` points to this thread's own variable, see above.
    unsafe { *errno = saved };
}

/// Records the stack of the interrupted code.
fn note(words: &[AtomicUsize]) {
    let (mut frames, mut is_interrupted) = (0, false);
    walk(&mut |address, was_interrupted| {
        // The innermost frames are those of the handler, which are skipped. The first frame after them, which
        // is that of the interrupted code, is marked by `was_interrupted`.
        is_interrupted |= was_interrupted;
        if is_interrupted && let Some(word) = words.get(frames + 2) {
            // The address of a caller's frame is the return address, which may already belong to the next
            // line or function. Subtract 1 to get an address in the call instruction.
            word.store(if was_interrupted { address } else { address.saturating_sub(1) }, Ordering::Relaxed);
            frames += 1;
        }
        frames < FRAMES_MAX
    });
    if let [thread, count, ..] = words {
        // SAFETY: the call takes no arguments and cannot fail.
        let id = unsafe { libc::syscall(libc::SYS_gettid) };
        thread.store(usize::try_from(id).unwrap_or(0), Ordering::Relaxed);
        count.store(frames, Ordering::Relaxed);
    }
}

/// A frame that the unwinder visits.
#[repr(C)]
struct Frame {
    _opaque: [u8; 0],
}

type Visitor<'a> = &'a mut dyn FnMut(usize, bool) -> bool;

// Functions of the unwinder, which every Rust program that uses the standard library contains.
unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(*mut Frame, *mut c_void) -> c_int, with: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut Frame, before: *mut c_int) -> usize;
}

/// The value `_URC_NO_REASON`, with which the visitor tells the unwinder to continue.
const GO_ON: c_int = 0;
/// The value `_URC_NORMAL_STOP`, with which the visitor tells the unwinder to stop.
const ENOUGH: c_int = 4;

/// Walks the current stack from the innermost frame outwards. Passes the visitor the address of each frame,
/// and true if a signal has interrupted the code of the frame. Ends when the visitor returns false.
fn walk(mut visitor: Visitor<'_>) {
    extern "C" fn visit(frame: *mut Frame, with: *mut c_void) -> c_int {
        let mut before: c_int = 0;
        // SAFETY: the unwinder passes its own frame.
        let address = unsafe { _Unwind_GetIPInfo(frame, &mut before) };
        // SAFETY: the pointer is to the visitor of the call below, which has not returned.
        let visitor = unsafe { &mut *with.cast::<Visitor<'_>>() };
        if address != 0 && visitor(address, before != 0) { GO_ON } else { ENOUGH }
    }
    // SAFETY: the visitor lives until the call returns, and nothing unwinds through it.
    unsafe { _Unwind_Backtrace(visit, (&raw mut visitor).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::decoded;

    #[inline(never)]
    fn busy_here(until: Instant) -> u64 {
        let mut sum = 1u64;
        while Instant::now() < until {
            for i in 0..1000 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
            }
        }
        sum
    }

    #[test]
    fn what_uses_the_processor_is_in_the_profile_and_only_one_is_taken_at_a_time() {
        let begin = || CpuProfile::start(Turn::take()?, 1, 1);
        let mut profile =
            CpuProfile::start(Turn::take().expect("no other is taken"), 5, 2).expect("it begins");
        assert!(matches!(begin(), Err(Busy::Already)));
        let taken = || {
            // SAFETY: the profile has not ended.
            unsafe { &*profile.shared }.taken.load(Ordering::Relaxed)
        };
        let began = Instant::now();
        let worker = std::thread::Builder::new().name("worker".to_owned());
        worker
            .spawn(move || {
                while began.elapsed() < Duration::from_millis(300) {
                    busy_here(Instant::now() + Duration::from_millis(50));
                }
            })
            .expect("a thread")
            .join()
            .expect("it ends");
        while taken() < 5 && began.elapsed() < Duration::from_secs(30) {
            busy_here(Instant::now() + Duration::from_millis(20));
        }
        // While a profile is being encoded, no other one can begin either.
        profile.end();
        assert!(matches!(begin(), Err(Busy::Already)));
        let told = decoded(&profile.finish());
        assert!(told.strings.iter().any(|name| name.contains("busy_here")), "{:?}", told.strings);
        assert!(told.samples >= 5, "{} samples", told.samples);
        // Another profile can begin after the end of the first one, and after one that was dropped without a
        // result.
        drop(begin().expect("the one before has ended"));
        begin().expect("the one before has ended").finish();
    }

    #[test]
    fn samples_beyond_the_memory_for_them_are_counted_only() {
        let buffer = Buffer::new(2);
        assert!(buffer.claim().is_some() && buffer.claim().is_some());
        assert!(buffer.claim().is_none());
        assert_eq!(buffer.taken.load(Ordering::Relaxed) - buffer.slots, 1);
        assert_eq!(stacks(&buffer).len(), 2);
    }
}
