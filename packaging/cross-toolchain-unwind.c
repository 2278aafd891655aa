/* glibc's _dl_find_object for static programs with musl, whose libgcc_eh comes from a GCC that was built for glibc. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* As in glibc's dlfcn.h. */
struct dl_find_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct dl_find_object *found;
};

static int look(struct dl_phdr_info *object, size_t size, void *data) {
    struct search *search = data;
    void *eh_frame = NULL;
    uintptr_t first = 0, end = 0;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t begin = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && search->address - begin < part->p_memsz) {
            first = begin;
            end = begin + part->p_memsz;
        } else if (part->p_type == PT_GNU_EH_FRAME) {
            eh_frame = (void *)begin;
        }
    }
    if (end == 0 || eh_frame == NULL) return 0;
    search->found->flags = 0;
    search->found->map_start = (void *)first;
    search->found->map_end = (void *)end;
    search->found->link_map = NULL;
    search->found->eh_frame = eh_frame;
    return 1;
}

int _dl_find_object(void *address, struct dl_find_object *found) {
    struct search search = {(uintptr_t)address, found};
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
