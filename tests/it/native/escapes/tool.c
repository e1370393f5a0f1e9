// The only program of the roots that the tests make: it says what a path is, and what is in it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static int failed(void) {
    printf("E%d\n", errno);
    return 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    if (!strcmp(arguments[1], "id")) {
        printf("%d %d %d\n", getuid(), geteuid(), getegid());
        return 0;
    }
    for (int i = 2; i < count; i++) {
        char buffer[4096];
        struct stat found;
        struct statfs filesystem;
        if (!strcmp(arguments[1], "type")) {
            if (lstat(arguments[i], &found) || statfs(arguments[i], &filesystem)) {
                failed();
                continue;
            }
            const char *kind = S_ISLNK(found.st_mode) ? "link" : S_ISDIR(found.st_mode) ? "directory" : "other";
            printf("%s %lx\n", kind, (unsigned long)filesystem.f_type);
        } else if (!strcmp(arguments[1], "cat")) {
            int file = open(arguments[i], O_RDONLY);
            ssize_t length = file < 0 ? -1 : read(file, buffer, sizeof buffer);
            if (length < 0) {
                failed();
                continue;
            }
            while (length > 0) {
                fwrite(buffer, 1, (size_t)length, stdout);
                length = read(file, buffer, sizeof buffer);
            }
            printf("<end>\n");
        } else if (!strcmp(arguments[1], "write")) {
            int file = open(arguments[i], O_WRONLY | O_CREAT | O_APPEND, 0666);
            if (file < 0 || write(file, "x", 1) < 0) {
                failed();
                continue;
            }
            printf("written\n");
        }
    }
    return 0;
}
