/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of some pushes, for `libra hotset build --keys`: one push a line, its keys as decimal
 * numbers with spaces between.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define EACH   64 /* pushes to a server, one of which is written */
#define DIGITS 20 /* of a key, at most */

/* keys_open makes the file of this node, when its number is known. */
bool keys_open(struct van *v, int node)
{
	const char *folder = v->set.keys_out;
	struct keys *k = &v->keys;

	if (!folder || v->role != VAN_WORKER)
		return true;
	if (mkdir(folder, 0777) && errno != EEXIST) {
		van_fail(v, "LIBRA_KEYS_OUT: %s: %m: name a folder that can be made, or unset it", folder);
		return false;
	}
	snprintf(k->path, sizeof k->path, "%s/worker-%d.keys", folder, node);
	int fd = open(k->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0) {
		van_fail(v, "LIBRA_KEYS_OUT: %s: %m: name a folder in which this user can write, or unset it", k->path);
		return false;
	}
	pthread_mutex_lock(&k->lock);
	k->fd = fd;
	pthread_mutex_unlock(&k->lock);
	return true;
}

/* text writes keys as a line, and returns its end. */
static char *text(char *to, const uint64_t *keys, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char digits[DIGITS];
		unsigned d = DIGITS;
		uint64_t key = keys[i];
		do
			digits[--d] = (char)('0' + key % 10);
		while (key /= 10);
		while (d < DIGITS)
			*to++ = digits[d++];
		*to++ = i + 1 < n ? ' ' : '\n';
	}
	return to;
}

/* put writes a line, and returns false with errno. */
static bool put(int fd, const uint64_t *keys, size_t n)
{
	char *line = malloc(n * (DIGITS + 1));

	if (!line)
		return false;
	for (const char *from = line, *end = text(line, keys, n); from < end;) {
		ssize_t written = write(fd, from, (size_t)(end - from));
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0) {
			free(line);
			return false;
		}
		from += written;
	}
	free(line);
	return true;
}

/*
 * due counts a push to a server. Of each 64 another one is due, so that tensors that a program
 * pushes in turn are all seen.
 */
static bool due(struct keys *k, int server)
{
	uint32_t *count = k->pushes + (unsigned)server % KEYS_SERVERS, n = (*count)++;

	return n % EACH == (n / EACH * UINT32_C(2654435761) >> 16) % EACH;
}

/* keys_note writes the keys of a push if it is due. */
void keys_note(struct van *v, const struct van_message *m)
{
	struct keys *k = &v->keys;

	if (!v->set.keys_out || v->role != VAN_WORKER || m->n == 0)
		return;
	pthread_mutex_lock(&k->lock);
	bool failed = k->fd >= 0 && due(k, m->recver) && !put(k->fd, m->keys, m->n);
	int code = errno;
	if (failed)
		keys_close(v);
	pthread_mutex_unlock(&k->lock);
	errno = code;
	if (failed)
		van_warn(v, "LIBRA_KEYS_OUT: %s: %m: no more keys are written", k->path);
}

void keys_close(struct van *v)
{
	if (v->keys.fd >= 0)
		close(v->keys.fd);
	v->keys.fd = -1;
}
