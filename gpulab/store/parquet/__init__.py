"""Tables of schema 1, which were Parquet files: read with pyarrow, if it is installed, and not written.

decoding   Parquet -> the columns of a table
footer     sizes in a Parquet file, checked before it is read
thrift     the encoding of these sizes
"""
