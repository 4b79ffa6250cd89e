/* Preloaded into a Redis server: its wall clock is off by the microseconds in the
   file that SKEW_FILE names, and steps when they change. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t skew(void)
{
	static volatile int64_t *offset;
	static int tried;
	if (!tried) {
		const char *path = getenv("SKEW_FILE");
		int fd = path ? open(path, O_RDONLY) : -1;
		tried = 1;
		if (fd >= 0) {
			void *page = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
			if (page != MAP_FAILED)
				offset = page;
			close(fd);
		}
	}
	return offset ? *offset : 0;
}

static int64_t now_us(long *ns)
{
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
	*ns = t.tv_nsec % 1000;
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + skew();
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	long ns;
	int64_t us = now_us(&ns);
	(void)zone;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long ns;
	int64_t us;
	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return (int)syscall(SYS_clock_gettime, clock, t);
	us = now_us(&ns);
	t->tv_sec = us / 1000000;
	t->tv_nsec = us % 1000000 * 1000 + ns;
	return 0;
}

time_t time(time_t *out)
{
	long ns;
	time_t s = now_us(&ns) / 1000000;
	if (out)
		*out = s;
	return s;
}
