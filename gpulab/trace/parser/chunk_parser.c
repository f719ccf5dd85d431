/* The Python module of the parser, for gpulab/trace/reading/compiled.py. It uses the limited API, so that one build
 * serves every version of Python from 3.10 on. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "event_columns.h"

/* A list with the texts of each space, as a JSON array. */
static PyObject *lists_of_texts(const Texts *texts, int spaces)
{
    PyObject *lists = PyList_New(spaces);
    char *ends[MAX_SPACES];
    for (int space = 0; lists && space < spaces; space++) {
        size_t commas = (size_t)texts->code_count[space] - (texts->code_count[space] > 0);
        PyObject *list = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(texts->text_bytes[space] + commas + 2));
        if (!list || PyList_SetItem(lists, space, list) < 0) {
            Py_CLEAR(lists);
            break;
        }
        ends[space] = PyBytes_AsString(list);
        *ends[space] = '[';
        ends[space][texts->text_bytes[space] + commas + 1] = ']';
        ends[space]++;
    }
    for (size_t index = 0; lists && index < texts->count; index++) {
        const Entry *entry = &texts->entries[index];
        char **end = &ends[entry->space];
        if (entry->code)
            *(*end)++ = ',';
        memcpy(*end, entry->slice.text, entry->slice.length);
        *end += entry->slice.length;
    }
    return lists;
}

/* The result of a parser that has read its text up to `after`. */
static PyObject *result_of(const Parser *parser, Py_ssize_t after)
{
    PyObject *texts = lists_of_texts(&parser->texts, FIELDS + parser->key_count);
    return texts ? Py_BuildValue("nKNn", (Py_ssize_t)parser->row_count, parser->used_keys, texts, after) : NULL;
}

static PyObject *run(Parser *parser, const char *start, Py_ssize_t begin, Py_ssize_t end, int has_bracket)
{
    const char *after;
    parser->end = start + end;
    Py_BEGIN_ALLOW_THREADS
    after = parse_events(parser, start + begin, has_bracket);
    Py_END_ALLOW_THREADS
    if (after)
        return result_of(parser, after - start);
    return parser->is_full ? PyBool_FromLong(1) : Py_NewRef(Py_None);
}

static PyObject *parse(PyObject *module, PyObject *args)
{
    PyObject *buffer, *columns, *result = NULL;
    const char *keys;
    Py_ssize_t begin, end, keys_length;
    int is_exact, has_bracket;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnnYy#pp", &buffer, &begin, &end, &columns, &keys, &keys_length, &is_exact,
                          &has_bracket))
        return NULL;
    bool is_bytes = PyBytes_Check(buffer);
    if (!is_bytes && !PyByteArray_Check(buffer))
        return PyErr_Format(PyExc_TypeError, "the buffer must be bytes or a bytearray");
    if (begin < 0 || end < begin || end > PyObject_Length(buffer))
        return PyErr_Format(PyExc_ValueError, "the text is not within the buffer");
    /* A bytearray cannot be resized as long as a view of it exists. */
    PyObject *view = PyMemoryView_FromObject(buffer), *columns_view = PyMemoryView_FromObject(columns);
    Parser *parser = calloc(1, sizeof *parser);
    if (!parser)
        PyErr_NoMemory();
    if (view && columns_view && parser) {
        char *cells = PyByteArray_AsString(columns);
        parser->is_exact = is_exact;
        parser->columns = (int64_t *)(void *)cells;
        if ((uintptr_t)cells % sizeof(int64_t) == 0 && read_keys(parser, keys, keys + keys_length)) {
            parser->row_capacity = (size_t)PyByteArray_Size(columns) / 8 / (size_t)(FIELDS + parser->key_count);
            result = run(parser, is_bytes ? PyBytes_AsString(buffer) : PyByteArray_AsString(buffer), begin, end,
                         has_bracket);
        } else {
            PyErr_SetString(PyExc_ValueError, "the arguments or the memory for columns cannot be used");
        }
        free(parser->texts.entries);
        free(parser->texts.table);
    }
    free(parser);
    Py_XDECREF(view);
    Py_XDECREF(columns_view);
    return result;
}

static PyObject *names(const char *const *texts, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int index = 0; tuple && index < count; index++) {
        PyObject *text = PyUnicode_InternFromString(texts[index]);
        if (!text || PyTuple_SetItem(tuple, index, text) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static int initialize(PyObject *module)
{
    PyObject *fields = names(field_names, FIELDS), *scopes = names(scope_names, SCOPES);
    int status = fields && scopes ? PyModule_AddObjectRef(module, "FIELDS", fields) : -1;
    status = status == 0 ? PyModule_AddObjectRef(module, "SCOPES", scopes) : -1;
    Py_XDECREF(fields);
    Py_XDECREF(scopes);
    return status;
}

static PyMethodDef methods[] = {
    {"parse", parse, METH_VARARGS,
     "parse(buffer, begin, end, columns, keys, is_exact, has_bracket) -> (rows, used, texts, end), None or True\n\n"
     "Parse the events in a part of the buffer, up to its end or to the bracket after them, into columns of 64-bit\n"
     "integers: FIELDS and the arguments in `keys`. `rows`: their number. `used`: bits of the arguments that occur.\n"
     "`texts`: for each column the JSON array of its distinct texts, which the rows have the indices of.\n"
     "None: msgspec must read this text. True: there are too few rows in `columns`."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, initialize}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_chunk_parser", "Parser of events of Kineto traces.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__chunk_parser(void)
{
    return PyModuleDef_Init(&definition);
}
